package conformance

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/internal/museum"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSeedIsRepeated(t *testing.T) {
	t.Setenv(seedVariable, "42")
	assert.Equal(t, uint64(42), seed())
	assert.ErrorContains(t, play(t, harnessOf("fenceInTheLock"), caseNamed(t, "History")), seedVariable+"=42")
}

func TestTooLittleFails(t *testing.T) {
	idle := testCase{name: "idle", check: func(s *scene, a, b *client) {
		playHistory(s, func(*randomRun, []*worker) {})
	}}
	assert.ErrorContains(t, play(t, harnessOf("near"), idle), "too little happened to prove anything: a key was found held 0 times")
	r := &randomRun{seen: map[string]int{"a": 1}, want: map[string]int{"a": 1}}
	assert.Empty(t, r.lacks())
	r.want["b"] = 1
	assert.Equal(t, "a 1 times, of at least 1; b 0 times, of at least 1", r.lacks())
}

var errUnreliable = errors.New("no reply")

// unreliable returns what loses replies, and delivers some calls late.
func unreliable() func(dlock.Locker) dlock.Locker {
	var calls atomic.Int64
	return around(func(ctx context.Context, r request, l dlock.Forward) (any, error) {
		if !slices.Contains(names{"TryAcquire", "Renew", "Release"}, r.name) {
			return r.send(ctx, l)
		}
		switch calls.Add(1) % 12 {
		case 3:
			_, _ = r.send(ctx, l)
		case 6:
			time.AfterFunc(30*time.Millisecond, func() { _, _ = r.send(context.WithoutCancel(ctx), l) })
		case 9: // never delivered
		default:
			return r.send(ctx, l)
		}
		return nil, errUnreliable
	})
}

// A correct store is not blamed for what it answers while replies are lost and requests come late; a broken one still is.
func TestHistoryWithLostReplies(t *testing.T) {
	lossy := testCase{name: "lossy", check: func(s *scene, a, b *client) {
		playHistory(s, func(r *randomRun, workers []*worker) {
			for _, w := range workers {
				w.faulty = true
			}
			r.work(workers)
			unanswered := 0
			for _, o := range r.recorder.History().Operations {
				if o.Key == workers[0].keys[0] && errors.Is(o.Err, errUnreliable) {
					unanswered++
				}
			}
			assert.True(t, s.over() || unanswered > 20, "%d calls without a reply", unanswered)
		})
	}}
	for range 20 {
		require.NoError(t, play(t, harnessOf("near", unreliable()), lossy))
	}
	for _, flaw := range []string{"failsOver", "fenceInTheLock", "deniesReleases"} {
		var err error
		for tries := 0; err == nil && tries < 10; tries++ { // one may be lucky
			err = play(t, harnessOf(flaw, unreliable()), lossy)
		}
		assert.Error(t, err, flaw)
	}
}

// failedHistory plays History on a broken store until it fails on a piece.
func failedHistory(t *testing.T, flaw string) *historyError {
	for range 20 {
		var e *historyError
		if err := play(t, harnessOf(flaw), caseNamed(t, "History")); errors.As(err, &e) && e.violation != nil {
			return e
		}
	}
	t.Fatalf("no history of %q fails", flaw)
	return nil
}

func TestFailedHistoryIsPrinted(t *testing.T) {
	for _, flaw := range []string{"fenceInTheLock", "getThenSet", "revives"} {
		e := failedHistory(t, flaw)
		assert.Regexp(t, seedVariable+`=\d+ makes the same random choices again`, e.Error())
		assert.Contains(t, e.Error(), e.violation.Key)
		lines := regexp.MustCompile(`(?m)^ +\d+\.\d{3}ms to +\S+  client \d  `).FindAllString(e.Error(), -1)
		assert.NotEmpty(t, lines, "%s: %v", flaw, e)
		assert.Less(t, len(strings.Split(e.Error(), "\n")), 12, "the piece is not short: %v", e)
		assert.NotContains(t, e.Error(), "the latest calls", "which have nothing to do with it")
	}
}

// A history that fails though no piece of it is to blame shows the latest calls.
func TestHistoryThatEndedEarlyIsPrinted(t *testing.T) {
	full := around(func(ctx context.Context, r request, l dlock.Forward) (any, error) {
		if r.name == "TryAcquire" {
			return nil, errors.New("disk full")
		}
		return r.send(ctx, l)
	})
	err := play(t, harnessOf(museum.Right[0].Name, full), caseNamed(t, "History"))
	require.Regexp(t, `the latest calls:\n.*TryAcquire\(.*disk full`, err.Error())
}

func TestHistoryIsKept(t *testing.T) {
	assert.Empty(t, keepHistory(t, errors.New("of another case")))
	e := failedHistory(t, "fenceInTheLock")
	dir := flag.Lookup("test.outputdir").Value.String() // where artifacts are, in the process below
	if flag.Lookup("test.artifacts").Value.String() != "true" {
		dir = t.TempDir()
		t.Setenv("TMPDIR", dir)
	}
	printed := keepHistory(t, fmt.Errorf("wrapped: %w", e))
	path := strings.TrimPrefix(printed, "\nthe whole history: ")
	text, err := os.ReadFile(path)
	require.NoError(t, err, printed)
	assert.Contains(t, string(text), e.Error())
	assert.Contains(t, string(text), e.history.Listing(e.violation))
	assert.Contains(t, path, fmt.Sprint(e.seed))
	assert.True(t, strings.HasPrefix(path, dir), "%s is not in %s", path, dir)
	if dir != flag.Lookup("test.outputdir").Value.String() {
		t.Setenv("TMPDIR", "/nowhere")
		assert.Contains(t, keepHistory(t, e), "the history was not kept")
	}
}

func TestHistoryIsAnArtifact(t *testing.T) {
	dir := t.TempDir()
	out, err := exec.Command(os.Args[0], "-test.run=^TestHistoryIsKept$", "-test.artifacts", "-test.outputdir="+dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	var kept []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if filepath.Ext(path) == ".txt" {
			kept = append(kept, path)
		}
		return err
	}))
	assert.Len(t, kept, 1, "%s", out)
}

func TestSameSeedSameSteps(t *testing.T) {
	steps := func(seed uint64, worker int) string {
		p := newPlan(seed, worker, time.Second)
		var all strings.Builder
		for range 200 {
			fmt.Fprintln(&all, p.next())
		}
		return all.String()
	}
	assert.Equal(t, steps(1, 0), steps(1, 0))
	assert.NotEqual(t, steps(1, 0), steps(2, 0), "the seed makes no difference")
	assert.NotEqual(t, steps(1, 0), steps(1, 1), "all workers do the same")
	shares := 0
	for _, task := range tasks {
		shares += task.share
	}
	assert.Equal(t, 100, shares)
}

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
