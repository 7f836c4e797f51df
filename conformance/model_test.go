package conformance

import (
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain has package rapid do the same in every run, and not make failures shorter.
func TestMain(m *testing.M) {
	setFlags(map[string]string{"rapid.seed": "1", "rapid.shrinktime": "0s"})
	os.Exit(m.Run())
}

func setFlags(flags map[string]string) {
	for name, value := range flags {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
}

// TestModelShrinks looks at what is shown of a flaw: the few calls that it takes to see it,
// what the model says, and how to repeat it.
func TestModelShrinks(t *testing.T) {
	setFlags(map[string]string{"rapid.shrinktime": "10m"})
	t.Cleanup(func() { setFlags(map[string]string{"rapid.shrinktime": "0s"}) })
	for _, c := range []struct {
		flaw  string
		calls int
		last  string
		wrong string
	}{
		{"prefixes", 2, "A.TryAcquire(", `: it was acquired; but by then "`},
		{"cKeys", 2, "A.Release(", `: held = true; but by then nobody holds the key`},
		{"revives", 1, "A.Renew(", `: held = true; but by then nobody holds the key`},
		{"plainDelete", 2, "A.Release(", `: held = true; but by then "`},
		{"fenceInTheLock", 3, "A.TryAcquire(", `: it was acquired with fence 8, after 8; want at least 8 more`},
		{"detaches Renew", 1, "A.Renew(", ` = <nil>; its ctx has ended: want context canceled`},
	} {
		t.Run(c.flaw, func(t *testing.T) {
			h := harnessOf(c.flaw)
			h.shorten = 10 * time.Minute
			err := agreesWithModel(t, h)
			require.ErrorContains(t, err, c.wrong)
			wrong, rest, _ := strings.Cut(err.Error(), "\nthe latest calls:\n")
			assert.Contains(t, wrong, c.last)
			calls, rest, _ := strings.Cut(rest, "\nwhat is shown is the shortest")
			lines := strings.Split(calls, "\n")
			assert.Len(t, lines, c.calls, calls)
			assert.Contains(t, lines[len(lines)-1], c.last)
			assert.Contains(t, rest, "-rapid.seed=", "how to repeat it")
		})
	}
}

// TestModelFails is for TestModelLeavesNoFiles.
func TestModelFails(t *testing.T) {
	if os.Getenv(onPurpose) == "" {
		t.Skip("this test is run by another")
	}
	assert.Error(t, agreesWithModel(t, harnessOf("plainDelete")))
}

// A failure leaves a file to repeat it in the user's package only if that is asked for.
func TestModelLeavesNoFiles(t *testing.T) {
	for _, c := range []struct {
		asked, flag string
		kept        bool
	}{
		{"nothing", "", false}, {"no file", "-rapid.nofailfile", false},
		{"a file", "-rapid.nofailfile=false", true}, {"a file, by the environment", "RAPID_NOFAILFILE=false", true},
	} {
		t.Run(c.asked, func(t *testing.T) {
			t.Parallel()
			test := exec.Command(os.Args[0], "-test.run=^TestModelFails$")
			test.Dir, test.Env = t.TempDir(), append(os.Environ(), onPurpose+"=1")
			if strings.HasPrefix(c.flag, "-") {
				test.Args = append(test.Args, c.flag)
			} else {
				test.Env = append(test.Env, c.flag)
			}
			output, err := test.CombinedOutput()
			require.NoErrorf(t, err, "%s", output)
			left, err := os.ReadDir(test.Dir)
			require.NoError(t, err)
			assert.Equal(t, c.kept, len(left) > 0, "left behind: %v", left)
		})
	}
}
