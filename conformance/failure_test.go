package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A failure names the line of the chapter that found it, and that of the clause, by paths that open
// from anywhere: the suite is run in packages of other modules.
func TestFailureNamesItsLine(t *testing.T) {
	if _, self, _, _ := runtime.Caller(0); !filepath.IsAbs(self) {
		t.Skip("-trimpath has shortened all paths")
	}
	t.Chdir(t.TempDir())
	for _, f := range []struct {
		exhibit, name, file string
		line                string // is part of the line in which it was found
	}{
		{"trueForEver", "ReleaseByStranger", "releasing.go", "s.release("},
		{"trueForEver", "LateDuplicate", "clients_faults.go", "n.release("},
		{"wholeSeconds", "NotBefore", "time.go", "s.refused("},
		{"wholeSeconds", "AgreesWithModel", "random.go", "c.fail("},
		{"lastComeFirst", "FirstComeFirstServed", "waiting_queue.go", "s.eachServed("},
	} {
		c := caseNamed(t, f.name)
		err := play(t, harnessOf(f.exhibit), c)
		require.Error(t, err, f.name)
		at, clause, ok := strings.Cut(message(c, err), ": ")
		require.True(t, ok)
		assert.Contains(t, lineAt(t, at, f.file), f.line, "%s failed at %s", f.name, at)
		_, clause, _ = strings.Cut(clause, "\nclause (")
		clause, _, _ = strings.Cut(clause, ")")
		assert.Contains(t, lineAt(t, clause, f.file[:strings.IndexAny(f.file, "_.")]+".go"), c.clause.text)
	}
}

// lineAt returns the line of file that a failure names.
func lineAt(t *testing.T, at, file string) string {
	path, line, _ := strings.Cut(at, ":")
	n, err := strconv.Atoi(line)
	require.NoErrorf(t, err, "%q; want a line of %s", at, file)
	require.Equal(t, file, filepath.Base(path))
	source, err := os.ReadFile(path)
	require.NoError(t, err)
	return strings.Split(string(source), "\n")[n-1]
}

// What was found in no line of a chapter is said of the line of the clause.
func TestFailureElsewhereNamesTheClause(t *testing.T) {
	c := caseNamed(t, "Expiry")
	assert.Regexp(t, `^\S+/conformance/time\.go:\d+: it hangs\nclause \(\S+/conformance/time\.go:\d+\): `, message(c, errors.New("it hangs")))
}

// However many calls are made after the grant that a failure is about, and after the call
// that failed, both are shown, and little else.
func TestFailureShowsWhatItIsAbout(t *testing.T) {
	const many = 6000
	busy := testCase{name: "busy", check: func(s *scene, a, b *client) {
		others := func(n int) {
			eachOf(n, func(int) { s.release(b, s.grant(b, s.key(), s.token("elsewhere"), long), true) })
		}
		g := s.grant(a, s.key(), s.token("holder"), long)
		others(many)
		_, _ = b.Release(s.ctx, g.key, s.token("stranger"))
		others(100)
		s.fail("B.Release(%s, …): held = true; want false", brief(g.key))
	}}
	err := play(t, harnessOf("near"), busy)
	require.Error(t, err)
	_, calls, _ := strings.Cut(err.Error(), "\nthe latest calls:\n")
	lines := strings.Split(calls, "\n")
	assert.Regexp(t, `A\.TryAcquire\("conformance-\w+", "holder-\w+", 10m0s\) = acquired`, lines[0])
	assert.Contains(t, lines[1], fmt.Sprintf("… %d other calls", 2*many))
	assert.Regexp(t, `B\.Release\("conformance-\w+", "stranger-\w+"\) = false`, lines[2])
	assert.Contains(t, lines[3], fmt.Sprintf("… %d other calls", 200-traced))
	assert.Len(t, lines, 4+traced)
}

// A lease that ends less than a millisecond early has a likely cause, which is said with it.
func TestFailureHintsAtTheClock(t *testing.T) {
	err := play(t, harnessOf("cutsItsClock"), caseNamed(t, "AnyTTL"))
	require.ErrorContains(t, err, ", 300µs too early or more (is the clock cut to whole milliseconds?)")
	for early, want := range map[time.Duration]string{
		6 * time.Microsecond: " (is the clock cut to whole milliseconds?)",
		time.Millisecond:     "", 0: "", -time.Microsecond: "",
	} {
		assert.Equal(t, want, hint(early))
	}
}

// Both holders of a key are shown that two have at once.
func TestFailureShowsBothHolders(t *testing.T) {
	tr := newTrace()
	grant := func(token string) {
		tr.begin("key", token, "A.TryAcquire(%q, %q)", "key", token).end(dlock.Attempt{Acquired: true, Fence: 8}, nil)
	}
	grant("first")
	for range 4000 {
		grant("second")
	}
	for range 10_000 {
		tr.begin("other", "", "A.Inspect").end(dlock.Hold{}, nil)
	}
	tr.begin("key", "third", "B.Acquire(%q, %q)", "key", "third")
	shown := tr.about(`two hold "key"`)
	assert.Contains(t, shown, `TryAcquire("key", "first") = acquired`)
	assert.Contains(t, shown, `TryAcquire("key", "second") = acquired`)
	assert.Contains(t, shown, `B.Acquire("key", "third") …has not returned`)
	assert.Less(t, strings.Count(shown, "\n"), 2*traced)
}

// showsWhatItNames demands that the calls below a failure are those that it is about: each key,
// token and fence that its message names, and each method, stands in one of them.
func showsWhatItNames(t *testing.T, err error) {
	t.Helper()
	message, calls, ok := strings.Cut(err.Error(), "\nthe latest calls:\n")
	if !ok {
		return // a history, which shows calls of its own
	}
	for _, named := range nameable.FindAllStringSubmatch(message, -1) {
		name := strings.Join(named[1:], "") // one of the groups
		assert.Contains(t, calls, name, "%s\nshown:\n%s", message, calls)
	}
}

var nameable = regexp.MustCompile(`("[\w-]+-[A-Z2-7]{12}")|fences? (\d+)|and (\d{3,});|\b(TryAcquire|Acquire|Renew|Release|RenewBatch|Inspect|Vote|AcquireVote|Confirm|Pass)\b[(:=]`)

// onPurpose is set where a test runs another in a process of its own.
const onPurpose = "DLOCK_ON_PURPOSE"

// TestFailsOnPurpose is for TestDocShowsAFailure.
func TestFailsOnPurpose(t *testing.T) {
	if os.Getenv(onPurpose) == "" {
		t.Skip("this test is run by another")
	}
	h := harnessOf("trueForEver")
	h.verdicts = newVerdicts("")
	runCase(t, h, caseNamed(t, "ReleaseAfterExpiry"))
}

// TestDocShowsAFailure compares the failure that the documentation shows with a real one,
// but for what is different each time.
func TestDocShowsAFailure(t *testing.T) {
	test := exec.Command(os.Args[0], "-test.run=^TestFailsOnPurpose$")
	test.Env = append(os.Environ(), onPurpose+"=1")
	output, err := test.Output()
	require.Error(t, err, "the test must fail")
	_, failure, ok := strings.Cut(string(output), "    --- FAIL: TestFailsOnPurpose")
	require.True(t, ok, "%s", output)
	failure, _, _ = strings.Cut("    --- FAIL: TestConformance"+failure, "FAIL\n")
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	random := regexp.MustCompile(`-[A-Z2-7]{12}|\S*/conformance/|\.go:\d+|\(\d\.\d\ds\)`)
	same := func(s string) string { return random.ReplaceAllString(s, "*") }
	_, shown, _ := strings.Cut(strings.ReplaceAll(string(doc), "//\t", "    "), "to every release:\n//\n")
	shown, _, _ = strings.Cut(shown, "//")
	assert.Equal(t, same(shown), same(failure))
}
