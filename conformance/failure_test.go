package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// wrapped is a store that is right, behind a Locker that may not be.
func wrapped(wrap func(dlock.Forward) dlock.Locker) Harness {
	var stores sync.Map
	return Harness{Bubble: true, New: func(t *testing.T) dlock.Locker {
		l, _ := stores.LoadOrStore(t, memory.New())
		return wrap(dlock.Forward{Locker: l.(dlock.Locker)})
	}}
}

// An alwaysReleases says of each release that the token held the key.
type alwaysReleases struct{ dlock.Forward }

func (l alwaysReleases) Release(ctx context.Context, key, token string) (bool, error) {
	_, err := l.Forward.Release(ctx, key, token)
	return true, err
}

// A halfLife keeps leases for half as long as it was asked.
type halfLife struct{ dlock.Forward }

func (l halfLife) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return l.Forward.TryAcquire(ctx, key, token, ttl/2)
}

// A forgetful store sends what waits away.
type forgetful struct{ dlock.Forward }

func (l forgetful) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return l.Forward.TryAcquire(ctx, key, token, ttl)
}

// A failure names the line of the chapter that found it, and that of the clause.
func TestFailureNamesItsLine(t *testing.T) {
	for _, f := range []struct {
		store      func(dlock.Forward) dlock.Locker
		name, file string
		line       string // is part of the line in which it was found
	}{
		{func(l dlock.Forward) dlock.Locker { return alwaysReleases{l} }, "ReleaseByStranger", "releasing.go", "s.release("},
		{func(l dlock.Forward) dlock.Locker { return alwaysReleases{l} }, "LateDuplicate", "clients_late.go", "s.release("},
		{func(l dlock.Forward) dlock.Locker { return halfLife{l} }, "NotBefore", "time.go", "s.fail("},
		{func(l dlock.Forward) dlock.Locker { return halfLife{l} }, "AgreesWithModel", "random_model.go", "c.fail("},
		{func(l dlock.Forward) dlock.Locker { return forgetful{l} }, "FirstComeFirstServed", "waiting_queue.go", "s.isServed("},
	} {
		c := caseNamed(t, f.name)
		err := play(t, wrapped(f.store), c)
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
	var n int
	_, err := fmt.Sscanf(at, "conformance/"+file+":%d", &n)
	require.NoErrorf(t, err, "%q; want a line of %s", at, file)
	source, err := os.ReadFile(file)
	require.NoError(t, err)
	return strings.Split(string(source), "\n")[n-1]
}

// What was found in no line of a chapter is said of the line of the clause.
func TestFailureElsewhereNamesTheClause(t *testing.T) {
	c := caseNamed(t, "Expiry")
	assert.Regexp(t, `^conformance/time\.go:\d+: it hangs\nclause \(conformance/time\.go:\d+\): `, message(c, errors.New("it hangs")))
}

// However many calls are made after the grant that a failure is about, and after the call
// that failed, both are shown, and little else.
func TestFailureShowsWhatItIsAbout(t *testing.T) {
	const many = 3 * remembered
	busy := testCase{name: "busy", check: func(s *scene) error {
		a, b := s.clients2()
		others := func(n int) {
			eachOf(n, func(int) { s.release(b, s.grant(b, s.key(), s.token("elsewhere"), long), true) })
		}
		g := s.grant(a, s.key(), s.token("holder"), long)
		others(many)
		_, _ = b.Release(s.ctx, g.key, s.token("stranger"))
		others(100)
		s.fail("B.Release(%s, …): held = true; want false", brief(g.key))
		others(100)
		return s.result()
	}}
	err := play(t, wrapped(func(l dlock.Forward) dlock.Locker { return l }), busy)
	require.Error(t, err)
	_, calls, _ := strings.Cut(err.Error(), "\nthe latest calls:\n")
	lines := strings.Split(calls, "\n")
	assert.Regexp(t, `A\.TryAcquire\("conformance-\w+", "holder-\w+", 10m0s\) = acquired`, lines[0])
	assert.Contains(t, lines[1], fmt.Sprintf("… %d other calls", 2*many))
	assert.Regexp(t, `B\.Release\("conformance-\w+", "stranger-\w+"\) = false`, lines[2])
	assert.Contains(t, lines[3], fmt.Sprintf("… %d other calls", 200-traced))
	assert.Len(t, lines, 4+traced)
}

// Both holders of a key are shown that two have at once.
func TestFailureShowsBothHolders(t *testing.T) {
	tr := newTrace()
	grant := func(token string) {
		tr.begin("key", token, "A.TryAcquire(%q, %q)", "key", token).end("acquired", true, nil)
	}
	grant("first")
	for range 2 * remembered {
		grant("second")
	}
	for range 5 * remembered {
		tr.begin("other", "", "A.Inspect").end("free", false, nil)
	}
	tr.begin("key", "third", "B.Acquire(%q, %q)", "key", "third")
	shown := tr.about(`two hold "key"`)
	assert.Contains(t, shown, `TryAcquire("key", "first") = acquired`)
	assert.Contains(t, shown, `TryAcquire("key", "second") = acquired`)
	assert.Contains(t, shown, `B.Acquire("key", "third") …has not returned`)
	assert.Less(t, strings.Count(shown, "\n"), 2*traced)
}

const failOnPurpose = "DLOCK_FAIL_ON_PURPOSE"

// TestFailsOnPurpose is for TestDocShowsAFailure.
func TestFailsOnPurpose(t *testing.T) {
	if os.Getenv(failOnPurpose) == "" {
		t.Skip("this test is run by another")
	}
	runCase(t, wrapped(func(l dlock.Forward) dlock.Locker { return alwaysReleases{l} }), caseNamed(t, "ReleaseAfterExpiry"))
}

// TestDocShowsAFailure compares the failure that the documentation shows with a real one,
// but for what is different each time.
func TestDocShowsAFailure(t *testing.T) {
	test := exec.Command(os.Args[0], "-test.run=^TestFailsOnPurpose$")
	test.Env = append(os.Environ(), failOnPurpose+"=1")
	output, err := test.Output()
	require.Error(t, err, "the test must fail")
	_, failure, ok := strings.Cut(string(output), "    --- FAIL: TestFailsOnPurpose")
	require.True(t, ok, "%s", output)
	failure, _, _ = strings.Cut("    --- FAIL: TestConformance"+failure, "FAIL\n")
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	random := regexp.MustCompile(`-[A-Z2-7]{12}|\.go:\d+|\(\d\.\d\ds\)`)
	same := func(s string) string { return random.ReplaceAllString(s, "*") }
	_, shown, _ := strings.Cut(strings.ReplaceAll(string(doc), "//\t", "    "), "to every release:\n//\n")
	shown, _, _ = strings.Cut(shown, "//")
	assert.Equal(t, same(shown), same(failure))
}
