package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
)

// A toyQuestion is a line of JSON that asks a toy over the network, and a toyAnswer
// the one that answers it.
type toyQuestion struct {
	Call       string
	Key, Token string
	TTL        time.Duration
	Batch      []dlock.Renewal
	Hidden     []byte // in place of all others: what they are, in JSON, which encodes bytes
}

func (q toyQuestion) hide() toyQuestion {
	text, _ := json.Marshal(q) // has nothing that could fail
	return toyQuestion{Hidden: text}
}

type toyAnswer struct {
	Attempt dlock.Attempt
	Held    bool
	Results []dlock.RenewResult
	Hold    dlock.Hold
	Err     string
}

// serveToy puts a toy behind the network, and returns where it listens.
func serveToy(t *testing.T, m *toy) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	over, stop := context.WithCancel(context.Background())
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { serveToyConn(over, m, conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		stop()
		all.Wait()
	})
	return l.Addr().String()
}

// serveToyConn notices that the client has gone while a question waits for its answer.
func serveToyConn(over context.Context, m *toy, conn net.Conn) {
	ctx, cancel := context.WithCancel(over)
	questions := make(chan toyQuestion, 100)
	go func() {
		defer cancel()
		defer close(questions)
		for in := json.NewDecoder(conn); ; {
			var q toyQuestion
			if in.Decode(&q) != nil {
				return
			}
			if q.Hidden != nil {
				_ = json.Unmarshal(q.Hidden, &q) // what is not a question has no answer
			}
			questions <- q
		}
	}()
	defer conn.Close()
	for q := range questions {
		until := context.Background()
		switch {
		case q.Call == "Acquire" && m.has("the dead are served"):
			until = over
		case q.Call == "Acquire":
			until = ctx
		}
		_ = json.NewEncoder(conn).Encode(m.answer(until, q)) // the client may have gone
	}
}

func (m *toy) answer(ctx context.Context, q toyQuestion) (a toyAnswer) {
	var err error
	switch q.Call {
	case "TryAcquire":
		a.Attempt, err = m.TryAcquire(ctx, q.Key, q.Token, q.TTL)
	case "Acquire":
		a.Attempt, err = m.Acquire(ctx, q.Key, q.Token, q.TTL)
	case "Renew":
		a.Held, err = m.Renew(ctx, q.Key, q.Token, q.TTL)
	case "Release":
		a.Held, err = m.Release(ctx, q.Key, q.Token)
	case "RenewBatch":
		a.Results, err = m.RenewBatch(ctx, q.Batch)
	case "Inspect":
		a.Hold, err = m.Inspect(ctx, q.Key)
	}
	if err != nil {
		a.Err = err.Error()
	}
	return a
}

// A netToy is a client of a toy behind the network, with one connection for each call
// and, if it is given one, a flaw.
type netToy struct {
	addr   string
	flaw   string
	hidden bool

	mu   sync.Mutex
	conn net.Conn // the only one, for a flaw
	err  error
}

func (c *netToy) has(flaws ...string) bool { return slices.Contains(flaws, c.flaw) }

func (c *netToy) ask(ctx context.Context, q toyQuestion) (toyAnswer, error) {
	if err := ctx.Err(); err != nil {
		return toyAnswer{}, err
	}
	if c.has("the first connection is the last") {
		return c.askForEver(ctx, q)
	}
	a, err := c.askOnce(ctx, q)
	if err != nil && c.has("calls are repeated without a word") {
		a, err = c.askOnce(ctx, q)
	}
	switch {
	case err == nil:
	case c.has("an error is swallowed"):
		return toyAnswer{Results: make([]dlock.RenewResult, len(q.Batch))}, nil
	case c.has("every error is marked"):
		return a, &dlock.NoEffectError{Err: err}
	case c.has("an error says that nothing was sent"):
		return a, errors.Join(err, dlock.ErrInvalid)
	case c.has("an error says that the client is closed") && errors.Is(err, io.EOF):
		return a, dlock.ErrClosed
	}
	return a, err
}

func (c *netToy) askOnce(ctx context.Context, q toyQuestion) (toyAnswer, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return toyAnswer{}, err
	}
	defer conn.Close()
	return c.askOn(ctx, conn, q)
}

func (c *netToy) askForEver(ctx context.Context, q toyQuestion) (a toyAnswer, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		c.conn, c.err = net.Dial("tcp", c.addr)
	}
	if c.err == nil {
		a, c.err = c.askOn(ctx, c.conn, q)
	}
	return a, c.err
}

func (c *netToy) askOn(ctx context.Context, conn net.Conn, q toyQuestion) (a toyAnswer, err error) {
	if !c.has("ctx is ignored") {
		defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	}
	if c.hidden {
		q = q.hide()
	}
	if err := json.NewEncoder(conn).Encode(q); err != nil {
		return a, err
	}
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if c.has("a beginning is taken for the whole") && len(line) > 0 {
		_ = json.Unmarshal(line, &a)
		a.Results = make([]dlock.RenewResult, len(q.Batch))
		return a, nil
	}
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, err
	}
	if a.Err != "" {
		return toyAnswer{}, errors.New(a.Err)
	}
	return a, nil
}

func (c *netToy) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := c.ask(ctx, toyQuestion{Call: "TryAcquire", Key: key, Token: token, TTL: ttl})
	a.Attempt.Since = time.Time{} // is of another clock
	if c.has("a grant is dated when it arrives") {
		a.Attempt.Since = time.Now()
	}
	if err != nil && c.has("an answer is made up") {
		if hold, failed := c.Inspect(ctx, key); failed == nil && hold.Token == token {
			return dlock.Attempt{Acquired: true}, nil
		}
	}
	return a.Attempt, err
}

// Acquire dates a grant when the wait began, which is conservative, and too much so
// for a wait of more than a TTL.
func (c *netToy) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	var lag time.Duration
	if c.has("the clocks are compared by a slow answer") {
		start := time.Now()
		_, _ = c.Inspect(ctx, key)
		lag = time.Since(start)
	}
	a, err := c.ask(ctx, toyQuestion{Call: "Acquire", Key: key, Token: token, TTL: ttl})
	a.Attempt.Since = time.Time{}
	if err != nil && c.has("a cancelled wait is marked", "a cancelled wait is marked beside the holder") {
		err = &dlock.NoEffectError{Err: err}
		if c.has("a cancelled wait is marked beside the holder") {
			a.Attempt.Remaining = time.Second
		}
	}
	if lag != 0 {
		a.Attempt.Since = time.Now().Add(lag)
	}
	return a.Attempt, err
}

func (c *netToy) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	a, err := c.ask(ctx, toyQuestion{Call: "Renew", Key: key, Token: token, TTL: ttl})
	if err != nil && c.has("a renewal without an answer counts") {
		return true, nil
	}
	return a.Held, err
}

func (c *netToy) Release(ctx context.Context, key, token string) (bool, error) {
	a, err := c.ask(ctx, toyQuestion{Call: "Release", Key: key, Token: token})
	return a.Held, err
}

func (c *netToy) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	a, err := c.ask(ctx, toyQuestion{Call: "RenewBatch", Batch: batch})
	return a.Results, err
}

func (c *netToy) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	a, err := c.ask(ctx, toyQuestion{Call: "Inspect", Key: key})
	return a.Hold, err
}

// Close closes what a flaw has kept.
func (c *netToy) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.Close()
	}
}

// A networkFlaw is one of a store behind the network, or of its client.
type networkFlaw struct {
	flaw   string
	caught string // the case that catches it
	why    string // what that says, as a regular expression
}

var networkFlaws = []networkFlaw{
	{"the first connection is the last", "Reconnection", "calls still fail"},

	{"the dead are served", "DeadWaiterOverNetwork", "waiters of one client whose process was killed"},

	{"an error is swallowed", "UnreachableStore", "returned no error"},
	{"an error says that nothing was sent", "UnreachableStore", "says that the call has no effect"},
	{"an error says that the client is closed", "UnreachableStore", "no later call can succeed"},
	{"every error is marked", "UnreachableStore", "breaks off each reply, returned .*says that the call has no effect"},

	{"every error is marked", "NoEffectOverNetwork", "after an interrupted (TryAcquire|Release|Renew|RenewBatch|Acquire) whose error says that it has no effect"},
	{"a cancelled wait is marked", "NoEffectOverNetwork", "after an interrupted Acquire whose error says that it has no effect"},
	{"a cancelled wait is marked beside the holder", "NoEffectOverNetwork", "after an interrupted Acquire whose error says that it has no effect"},
	{"a beginning is taken for the whole", "UnreachableStore", "a store that breaks off each reply, returned no error"},
	{"ctx is ignored", "UnreachableStore", "did not return"},

	{"calls are repeated without a word", "LostReplyOverNetwork", "Release.* answered that the token does not hold the key|lease lost"},
	{"an error is swallowed", "LostReplyOverNetwork", "whose reply was lost, (answered|returned)|lease lost"},
	{"the same token is refused", "LostReplyOverNetwork", "want it to be acquired"},
	{"an answer is made up", "LostReplyOverNetwork", "have the fences [0-9]+ and 0;"},

	{"release does not compare", "LateDuplicateOverNetwork", "must still hold the key|Release.*: held = true; want false"},
	{"renewal revives", "LateDuplicateOverNetwork", "want it to be acquired"},
	{"renewal does not compare", "LateDuplicateOverNetwork", "want it to be acquired|held = true; want false"},
	{"renewal shortens", "LateDuplicateOverNetwork", "must still hold the key"},
	{"the same token shortens", "LateDuplicateOverNetwork", "must still hold the key"},
	{"a batch shortens", "LateDuplicateOverNetwork", "must still hold the key"},
	{"a batch revives", "LateDuplicateOverNetwork", "want it to be acquired"},
	{"a batch does not compare", "LateDuplicateOverNetwork", "want it to be acquired"},
	{"leases never end", "LateDuplicateOverNetwork", "want it to be acquired"},

	{"a renewal without an answer counts", "BlackHole", "before the deadline of a lease"},
	{"a grant is dated when it arrives", "SlowNetwork", "before the deadline of a lease"},
	{"the clocks are compared by a slow answer", "SlowNetwork", "before Since.ttl of its holder"},
	{"half the TTL", "SlowNetwork", "before the deadline of a lease"},
}

// networkHarness has a toy of its own, behind the network and beside it.
func networkHarness(t *testing.T, flaw string) Harness {
	m := newToy(flaw)
	addr := serveToy(t, m)
	dial := func(t *testing.T, addr string) dlock.Locker {
		c := &netToy{addr: addr, flaw: flaw}
		t.Cleanup(c.close)
		return c
	}
	return Harness{
		New:  func(*testing.T) dlock.Locker { return m },
		Dial: dial,
		Addr: addr,
	}
}

func networkCases(t *testing.T) (found []testCase) {
	for _, c := range cases {
		if c.needs.missing(Harness{}) != nil && c.needs.missing(networkHarness(t, "")) == nil {
			found = append(found, c)
		}
	}
	require.Len(t, found, 8)
	return found
}

// playAll plays n cases, more of them at the same time than there would be of parallel
// tests: they wait for the network most of the time.
func playAll(n int, play func(i int) error) []error {
	const together = 6
	errs := make([]error, n)
	places := make(chan struct{}, together)
	var all sync.WaitGroup
	for i := range n {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			errs[i] = play(i)
		})
	}
	all.Wait()
	return errs
}

func isSkip(err error) bool {
	var skip skipError
	return errors.As(err, &skip)
}

func TestNetworkStorePasses(t *testing.T) {
	goroutines := goleak.IgnoreCurrent()
	t.Run("cases", func(t *testing.T) {
		found := networkCases(t)
		for i, err := range playAll(2*len(found), func(i int) error {
			h := networkHarness(t, "")
			if via := h.Dial; i >= len(found) { // without queue and batches
				h.Dial = func(t *testing.T, addr string) dlock.Locker { return plain{via(t, addr)} }
			}
			return play(t, h, found[i%len(found)])
		}) {
			if i >= len(found) && found[i%len(found)].name == "DeadWaiterOverNetwork" {
				assert.True(t, isSkip(err), "%v", err)
				continue
			}
			assert.NoError(t, err, found[i%len(found)].name)
		}
	})
	goleak.VerifyNone(t, goroutines)
}

// A busy machine may hide a flaw that has to do with time, but hardly eight times.
func TestNetworkFlawsAreCaught(t *testing.T) {
	for i, err := range playAll(len(networkFlaws), func(i int) (err error) {
		f := networkFlaws[i]
		for range 8 {
			h := networkHarness(t, f.flaw)
			h.patient = 2 * time.Second
			err = play(t, h, caseNamed(t, f.caught))
			if err != nil && regexp.MustCompile(f.why).MatchString(err.Error()) {
				break
			}
		}
		return err
	}) {
		f := networkFlaws[i]
		require.Error(t, err, "%s does not catch %q", f.caught, f.flaw)
		require.False(t, isSkip(err), "%s of %q: %v", f.caught, f.flaw, err)
		assert.Regexp(t, f.why, err.Error(), "%s of %q", f.caught, f.flaw)
	}
}

// A store whose requests hide key and token, behind TLS for instance, is no failure;
// what can be checked without them is.
func TestHiddenTraffic(t *testing.T) {
	hidden := func(flaw string) Harness {
		h := networkHarness(t, flaw)
		h.Dial = func(t *testing.T, addr string) dlock.Locker { return &netToy{addr: addr, flaw: flaw, hidden: true} }
		return h
	}
	for _, name := range []string{"LostReplyOverNetwork", "LateDuplicateOverNetwork", "Reconnection"} {
		var skip skipError
		require.ErrorAs(t, play(t, hidden(""), caseNamed(t, name)), &skip)
		assert.Contains(t, skip.reason, "literally")
	}
	assert.NoError(t, play(t, hidden(""), caseNamed(t, "UnreachableStore")))
	assert.NoError(t, play(t, hidden(""), caseNamed(t, "BlackHole")))
	assert.Error(t, play(t, hidden("an error is swallowed"), caseNamed(t, "UnreachableStore")))
}
