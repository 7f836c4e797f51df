package conformance

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSeedIsRepeated(t *testing.T) {
	t.Setenv(seedVariable, "42")
	assert.Equal(t, uint64(42), seed())
	for _, name := range []string{"History", "GuardedRegister"} {
		err := play(t, toyHarness("fences in disorder", itself), caseNamed(t, name))
		assert.ErrorContains(t, err, seedVariable+"=42", name)
	}
	assert.ErrorContains(t, play(t, toyHarness("check, then act", itself), caseNamed(t, "GuardedCounter")), seedVariable+"=42")
}

func TestSameSeedSameSteps(t *testing.T) {
	steps := func(seed uint64, worker int) []step {
		p := newPlan(seed, worker, time.Second)
		var all []step
		for range 200 {
			all = append(all, p.next())
		}
		return all
	}
	assert.Equal(t, steps(1, 0), steps(1, 0))
	assert.NotEqual(t, steps(1, 0), steps(2, 0), "the seed makes no difference")
	assert.NotEqual(t, steps(1, 0), steps(1, 1), "all workers do the same")
	for _, d := range deeds {
		assert.True(t, slices.ContainsFunc(steps(1, 0), func(s step) bool { return s.deed == d.deed }), "deed %d is never done", d.deed)
	}
}

func TestDeedsAddUp(t *testing.T) {
	sum := 0
	for _, d := range deeds {
		sum += d.share
	}
	assert.Equal(t, 100, sum)
}

func TestOverlap(t *testing.T) {
	hold := func(key string, from, to time.Duration, fence int64) *sureHold {
		return &sureHold{key: key, token: fmt.Sprint("token", fence), start: from, end: to, fence: fence}
	}
	for _, c := range []struct {
		name  string
		holds []*sureHold
		want  string
	}{
		{"good", []*sureHold{hold("k", 0, 5, 8), hold("k", 5, 9, 16)}, ""},
		{"without fences", []*sureHold{hold("k", 0, 5, 0), hold("k", 5, 9, 0)}, ""},
		{"out of order", []*sureHold{hold("k", 5, 9, 16), hold("k", 0, 5, 8)}, ""},
		{"two keys", []*sureHold{hold("k", 0, 5, 8), hold("l", 0, 5, 8)}, ""},
		{"overlap", []*sureHold{hold("k", 0, 6_000_000, 8), hold("l", 5, 6, 8), hold("k", 5_000_000, 9_000_000, 16)}, "overlap by 1.000ms"},
		{"fence falls", []*sureHold{hold("k", 0, 5, 16), hold("k", 5, 9, 8)}, "higher by at least 8"},
		{"fence repeats", []*sureHold{hold("k", 0, 5, 8), hold("k", 5, 9, 8)}, "higher by at least 8"},
		{"fence vanishes", []*sureHold{hold("k", 0, 5, 8), hold("k", 5, 9, 0)}, "higher by at least 8"},
	} {
		o := overlap(c.holds)
		if c.want == "" {
			assert.Nil(t, o, c.name)
		} else if assert.NotNil(t, o, c.name) {
			assert.Contains(t, o.String(), c.want, c.name)
			assert.Len(t, o.holds, 2, c.name)
		}
	}
}

// What was certain before a loss of data is over, even if it was told later.
func TestWipeEndsCertainty(t *testing.T) {
	wipe := &op{action: doWipe, called: 10, returned: 20}
	hold := func(asked, start, end time.Duration) *sureHold {
		return &sureHold{asked: asked, start: start, end: end}
	}
	got := cutAtWipes([]*sureHold{hold(0, 1, 5), hold(2, 3, 15), hold(4, 12, 30), hold(15, 25, 30), hold(21, 22, 30)}, []*op{wipe})
	assert.Equal(t, []*sureHold{hold(0, 1, 5), hold(2, 3, 10), hold(21, 22, 30)}, got)
}

func TestTooLittleFails(t *testing.T) {
	idle := testCase{name: "idle", check: func(s *scene) error {
		c := newChronicle(s)
		require.Positive(t, min(c.want.held, c.want.handed, c.want.cancelled, c.want.lost))
		for _, n := range []counts{{0, 9, 9, 9, 9, 9}, {9, 0, 9, 9, 9, 9}, {9, 9, 0, 9, 9, 9}, {9, 9, 9, 0, 9, 9}, {9, 9, 9, 9, 0, 9}, {9, 9, 9, 9, 9, 0}} {
			assert.False(t, n.enough(counts{9, 9, 9, 9, 9, 9}))
		}
		return c.verdict()
	}}
	assert.ErrorContains(t, play(t, toyHarness("", itself), idle), "too little happened to prove anything: a key was found held 0 times")
}

// An unreliable Locker loses replies, and delivers some calls late.
type unreliable struct {
	dlock.Forward
	calls atomic.Int64
}

var errUnreliable = errors.New("no reply")

// pass makes the call, unless it gets no reply.
func (u *unreliable) pass(ctx context.Context, call func(context.Context) error) error {
	switch u.calls.Add(1) % 12 {
	case 3:
		_ = call(ctx)
	case 6:
		time.AfterFunc(30*time.Millisecond, func() { _ = call(context.WithoutCancel(ctx)) })
	case 9: // never delivered
	default:
		return call(ctx)
	}
	return errUnreliable
}

func (u *unreliable) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return answer(u, ctx, func(ctx context.Context) (dlock.Attempt, error) { return u.Forward.TryAcquire(ctx, key, token, ttl) })
}

func (u *unreliable) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return answer(u, ctx, func(ctx context.Context) (bool, error) { return u.Forward.Renew(ctx, key, token, ttl) })
}

func (u *unreliable) Release(ctx context.Context, key, token string) (bool, error) {
	return answer(u, ctx, func(ctx context.Context) (bool, error) { return u.Forward.Release(ctx, key, token) })
}

// answer returns the answer to a call, unless that gets none.
func answer[T any](u *unreliable, ctx context.Context, call func(context.Context) (T, error)) (none T, err error) {
	answers := make(chan T, 1) // a late call may answer when nobody waits for it
	err = u.pass(ctx, func(ctx context.Context) error {
		a, err := call(ctx)
		answers <- a
		return err
	})
	if err != nil {
		return none, err
	}
	return <-answers, nil
}

// calm is a line that nothing happens to.
type calm struct{}

func (calm) silence(time.Duration) {}
func (calm) Close()                {}

// A correct store is not blamed for what it answers while replies are lost and
// requests come late; a broken one still is.
func TestHistoryWithLostReplies(t *testing.T) {
	lossy := testCase{name: "lossy", check: func(s *scene) error {
		c := newChronicle(s)
		workers := c.workers()
		for _, w := range workers {
			w.line = calm{} // errors are to be expected
		}
		c.run(workers)
		unanswered := 0
		for _, o := range c.book.all(c.keys[0]) {
			if errors.Is(o.err, errUnreliable) {
				unanswered++
			}
		}
		err := c.verdict()
		assert.True(t, err != nil || unanswered > 20, "%d calls without a reply", unanswered)
		return err
	}}
	for range 20 {
		require.NoError(t, play(t, toyHarness("", func(m *toy) dlock.Locker { return &unreliable{Forward: dlock.Forward{Locker: m}} }), lossy))
	}
	for _, flaw := range []string{"a held key is granted now and then", "fences in disorder", "release says not held now and then"} {
		var err error
		for tries := 0; err == nil && tries < 10; tries++ { // one may be lucky
			err = play(t, toyHarness(flaw, func(m *toy) dlock.Locker { return &unreliable{Forward: dlock.Forward{Locker: m}} }), lossy)
		}
		assert.Error(t, err, flaw)
	}
}

// failedHistory plays History on a broken store until it fails on a piece.
func failedHistory(t *testing.T, flaw string) *historyError {
	for range 20 {
		var e *historyError
		if err := play(t, toyHarness(flaw, itself), caseNamed(t, "History")); errors.As(err, &e) && e.offence != nil {
			return e
		}
	}
	t.Fatalf("no history of %q fails", flaw)
	return nil
}

func TestFailedHistoryIsTold(t *testing.T) {
	for _, flaw := range []string{"fences in disorder", "check, then act", "renewal revives"} {
		e := failedHistory(t, flaw)
		assert.Regexp(t, seedVariable+`=\d+ makes the same random choices again`, e.Error())
		assert.Contains(t, e.Error(), e.offence.key)
		lines := regexp.MustCompile(`(?m)^ +\d+\.\d{3}ms to +\S+  client \d  .*fence|= (true|false)`).FindAllString(e.Error(), -1)
		assert.GreaterOrEqual(t, len(lines), 2, "%s: %v", flaw, e)
		assert.Less(t, len(strings.Split(e.Error(), "\n")), 12, "the piece is not short: %v", e)
		assert.NotContains(t, e.Error(), "the latest calls", "which have nothing to do with it")
	}
}

func TestPicture(t *testing.T) {
	for _, flaw := range []string{"fences in disorder", "check, then act", "renewal revives"} {
		e := failedHistory(t, flaw)
		picture := e.picture()
		elements := parseXML(t, picture)
		bad := 0
		for _, el := range elements {
			if class := attribute(el, "class"); el.Name.Local == "rect" && strings.HasPrefix(class, "bad") {
				bad++
			}
		}
		assert.Equal(t, 2*(len(e.offence.holds)+len(e.offence.ops)), bad, "%s: each offender is to be seen in the piece and in the whole", flaw)
		for _, h := range e.offence.holds {
			assert.Contains(t, string(picture), fmt.Sprintf(">%d</text>", h.fence))
			assert.Contains(t, string(picture), escape(h.String()))
		}
		for _, o := range e.offence.ops {
			assert.Contains(t, string(picture), escape(o.String()))
		}
		assert.Contains(t, string(picture), escape(e.Error()))
		assert.NotRegexp(t, `\d+h\d+m`, string(picture), "the axis goes on after the history")
		assert.NotRegexp(t, `(src|href)=|url\(`, string(picture), "the page needs something else")
	}
}

func parseXML(t *testing.T, text []byte) []xml.StartElement {
	var all []xml.StartElement
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		token, err := d.Token()
		if err == io.EOF {
			return all
		}
		require.NoError(t, err)
		if el, ok := token.(xml.StartElement); ok {
			all = append(all, el.Copy())
		}
	}
}

func attribute(el xml.StartElement, name string) string {
	for _, a := range el.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// A picture may be drawn of a history with faults and data loss in it, or of one
// that no piece is to blame for, and tokens may hold any bytes.
func TestPictureOfAnything(t *testing.T) {
	strange := testCase{name: "strange", check: func(s *scene) error {
		c := newChronicle(s)
		c.want = counts{}
		c.run(c.workers())
		c.book.wipe(func() {})
		c.faults = []mishap{{1, 0, c.ttl}}
		o := c.book.begin(op{action: doTry, key: c.keys[0], token: "<&\x00\xff\"'"})
		c.book.end(o, errors.New("<]]>\x1b"), nil)
		return &historyError{errors.New("strange <&\x00>"), c, nil}
	}}
	var e *historyError
	require.ErrorAs(t, play(t, toyHarness("", itself), strange), &e)
	classes := make(map[string]int)
	for _, el := range parseXML(t, e.picture()) {
		classes[attribute(el, "class")]++
	}
	for _, class := range []string{"hold", "wait", "call", "fault", "loss", "tick", "row"} {
		assert.Positive(t, classes[class], class)
	}
}

func TestPictureIsKept(t *testing.T) {
	e := failedHistory(t, "fences in disorder")
	dir := flag.Lookup("test.outputdir").Value.String() // where artifacts are, in the process below
	if flag.Lookup("test.artifacts").Value.String() != "true" {
		dir = t.TempDir()
		t.Setenv("TMPDIR", dir)
	}
	told := keepPicture(t, fmt.Errorf("wrapped: %w", e))
	path := strings.TrimPrefix(told, "\npicture of the history: ")
	text, err := os.ReadFile(path)
	require.NoError(t, err, told)
	assert.Contains(t, string(text), "</html>")
	assert.Contains(t, path, fmt.Sprint(e.chronicle.seed))
	assert.True(t, strings.HasPrefix(path, dir), "%s is not in %s", path, dir)
}

func TestPictureIsAnArtifact(t *testing.T) {
	dir := t.TempDir()
	out, err := exec.Command(os.Args[0], "-test.run=^TestPictureIsKept$", "-test.artifacts", "-test.outputdir="+dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	var kept []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if filepath.Ext(path) == ".html" {
			kept = append(kept, path)
		}
		return err
	}))
	assert.Len(t, kept, 1, "%s", out)
}

func TestNoPicture(t *testing.T) {
	assert.Empty(t, keepPicture(t, errors.New("of another case")))
	e := failedHistory(t, "fences in disorder")
	t.Setenv("TMPDIR", "/nowhere")
	assert.Contains(t, keepPicture(t, e), "no picture of the history")
}
