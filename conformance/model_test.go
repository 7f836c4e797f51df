package conformance

import (
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
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
		{"cKeys", 2, "A.TryAcquire(", `: it was refused; but by then nobody holds the key`},
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

const modelFails = "DLOCK_MODEL_FAILS"

// TestModelFails is for TestModelLeavesNoFiles.
func TestModelFails(t *testing.T) {
	if os.Getenv(modelFails) == "" {
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
			test.Dir, test.Env = t.TempDir(), append(os.Environ(), modelFails+"=1")
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

// TestModelIsPatient: calls that take as long as leases, leases that last as long as the
// grace allows, and rough words about them, are no reason to fail.
func TestModelIsPatient(t *testing.T) {
	h := harnessOf("near", func(m dlock.Locker) dlock.Locker { return sluggish{dlock.Forward{Locker: m}} })
	assert.NoError(t, agreesWithModel(t, h))
}

// A sluggish store lets time pass before and after it does something.
type sluggish struct{ dlock.Forward }

func pass() { time.Sleep(time.Duration(rand.Int64N(int64(defaultTTL)))) }

// roughly is d, or less, but not none of it.
func roughly(d time.Duration) time.Duration { return max(d-late(), min(d, time.Millisecond)) }

func late() time.Duration { return time.Duration(rand.Int64N(int64(defaultGrace))) }

func (s sluggish) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	pass()
	defer pass()
	a, err := s.Forward.TryAcquire(ctx, key, token, ttl+late())
	a.Remaining = roughly(a.Remaining)
	return a, err
}

func (s sluggish) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	pass()
	defer pass()
	return s.Forward.Acquire(ctx, key, token, ttl+late())
}

func (s sluggish) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	pass()
	defer pass()
	return s.Forward.Renew(ctx, key, token, ttl+late())
}

func (s sluggish) Release(ctx context.Context, key, token string) (bool, error) {
	pass()
	defer pass()
	return s.Forward.Release(ctx, key, token)
}

func (s sluggish) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	pass()
	defer pass()
	h, err := s.Forward.Inspect(ctx, key)
	h.Remaining = roughly(h.Remaining)
	return h, err
}

func (s sluggish) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	pass()
	defer pass()
	return s.Forward.RenewBatch(ctx, batch)
}
