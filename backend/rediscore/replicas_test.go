package rediscore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
)

// A replicatedConn is a fakeConn with replicas.
type replicatedConn struct {
	*fakeConn
	replicas int // that have what was written
	noWait   error
	waits    int // how many WAITs were sent
}

func (c *replicatedConn) EvalReplicated(ctx context.Context, calls []Call, results []Result, wait Replication) {
	for i, call := range calls {
		results[i].Reply, results[i].Err = c.Eval(ctx, call)
		c.set(func() { results[i].Replicas, results[i].NoWait = c.replicas, c.noWait })
	}
	c.set(func() { c.waits++ })
}

// replicatedBubble is bubble with a conn that has replicas, of which two are wanted.
func replicatedBubble(t *testing.T, test func(t *testing.T, c *replicatedConn, l *Locker)) {
	t.Helper()
	c := new(replicatedConn)
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		c.fakeConn = f
		l.conn = c
		WithReplicas(2, time.Second)(l)
		test(t, c, l)
	})
}

// A grant, or a renewal, that too few replicas have is an error of which the outcome is unknown.
// What is not granted needs no replicas, and a release does not wait for them.
func TestReplicas(t *testing.T) {
	held := []any{"H", int64(1000)}
	ballot := []any{int64(0), "store", int64(1)}
	denied := errors.New("NOPERM this user has no permissions to run the 'wait' command")
	calls := map[string]func(*Locker, context.Context) (bool, error){
		"TryAcquire": func(l *Locker, ctx context.Context) (bool, error) {
			a, err := l.TryAcquire(ctx, "k", "t", time.Minute)
			return a.Acquired, err
		},
		"Renew": func(l *Locker, ctx context.Context) (bool, error) { return l.Renew(ctx, "k", "t", time.Minute) },
		"RenewBatch": func(l *Locker, ctx context.Context) (bool, error) {
			results, err := l.RenewBatch(ctx, []dlock.Renewal{{Key: "k", Token: "t", TTL: time.Minute}})
			return results[0].Held, errors.Join(err, results[0].Err)
		},
		"Acquire": func(l *Locker, ctx context.Context) (bool, error) {
			a, err := l.Acquire(ctx, "k", "t", time.Minute)
			return a.Acquired, err
		},
		"Vote": func(l *Locker, ctx context.Context) (bool, error) {
			b, err := l.Vote(ctx, "k", "t", time.Minute, 0)
			return b.Acquired, err
		},
		"Confirm": func(l *Locker, ctx context.Context) (bool, error) {
			ballots, err := l.Confirm(ctx, []quorum.Confirmation{{Renewal: dlock.Renewal{Key: "k", Token: "t", TTL: time.Minute}}})
			return ballots[0].Acquired, errors.Join(err, ballots[0].Err)
		},
		"AcquireVote": func(l *Locker, ctx context.Context) (bool, error) {
			b, err := l.AcquireVote(ctx, "k", "t", time.Minute, 0, 1)
			return b.Acquired, err
		},
	}
	for name, c := range map[string]struct {
		reply    any
		replicas int
		noWait   error
		ok       bool
		want     *ReplicasError
	}{
		"TryAcquire":        {int64(8), 2, nil, true, nil},
		"TryAcquire held":   {held, 0, nil, false, nil},
		"TryAcquire few":    {int64(8), 1, nil, false, &ReplicasError{1, 2, time.Second, nil}},
		"TryAcquire denied": {int64(8), 2, denied, false, &ReplicasError{2, 2, time.Second, denied}},
		"Renew":             {int64(1), 3, nil, true, nil},
		"Renew lost":        {int64(0), 0, denied, false, nil},
		"Renew few":         {int64(1), 1, nil, false, &ReplicasError{1, 2, time.Second, nil}},
		"RenewBatch":        {int64(1), 2, nil, true, nil},
		"RenewBatch lost":   {int64(0), 1, nil, false, nil},
		"RenewBatch few":    {int64(1), 1, nil, false, &ReplicasError{1, 2, time.Second, nil}},
		"Acquire":           {[]any{int64(answerGranted), int64(8)}, 2, nil, true, nil},
		"Acquire few":       {[]any{int64(answerGranted), int64(8)}, 0, nil, false, &ReplicasError{0, 2, time.Second, nil}},
		"Vote":              {[]any{int64(answerGranted), int64(8), ballot}, 2, nil, true, nil},
		"Vote held":         {[]any{int64(answerWaits), int64(8), "H", ballot}, 0, nil, false, nil},
		"Vote few":          {[]any{int64(answerGranted), int64(8), ballot}, 1, nil, false, &ReplicasError{1, 2, time.Second, nil}},
		"Confirm":           {[]any{int64(answerGranted), ballot}, 2, nil, true, nil},
		"Confirm lost":      {[]any{int64(answerUnknown), ballot}, 0, nil, false, nil},
		"Confirm few":       {[]any{int64(answerGranted), ballot}, 1, nil, false, &ReplicasError{1, 2, time.Second, nil}},
		"AcquireVote":       {[]any{int64(answerGranted), int64(8), ballot}, 2, nil, true, nil},
		"AcquireVote few":   {[]any{int64(answerGranted), int64(8), ballot}, 0, nil, false, &ReplicasError{0, 2, time.Second, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			replicatedBubble(t, func(t *testing.T, f *replicatedConn, l *Locker) {
				f.eval = func(context.Context, Call) (any, error) { return c.reply, nil }
				f.replicas, f.noWait = c.replicas, c.noWait
				var call string
				fmt.Sscan(name, &call)
				ok, err := calls[call](l, t.Context())
				require.Equal(t, c.ok, ok)
				if c.want == nil {
					require.NoError(t, err)
					return
				}
				var few *ReplicasError
				require.ErrorAs(t, err, &few)
				require.Equal(t, c.want, few)
				require.False(t, dlock.NoEffect(err), "a lease that nobody relies on would stay")
				if c.noWait != nil {
					require.ErrorIs(t, err, c.noWait)
				}
			})
		})
	}
	replicatedBubble(t, func(t *testing.T, c *replicatedConn, l *Locker) {
		c.eval = func(context.Context, Call) (any, error) { return int64(1), nil }
		ok, err := l.Release(t.Context(), "k", "t")
		require.NoError(t, err)
		require.True(t, ok)
		require.Zero(t, c.waits)
	})
}

// The message of a handover is only a hint: the waiter asks, and is granted the lock when the
// replicas have it. The lease began when it was handed over.
func TestHandoverToReplicas(t *testing.T) {
	for _, begin := range []func(t *testing.T, l *Locker, key, token string) *fakeWait{begin, beginVote} {
		replicatedBubble(t, func(t *testing.T, c *replicatedConn, l *Locker) {
			w := begin(t, l, "k", "t")
			time.Sleep(10 * time.Second) // the server's clock is known
			n, handed := len(c.evals(0)), time.Now()
			c.set(func() {
				c.eval = always(func() []any {
					return []any{int64(answerFound), int64(88), handed.UnixMicro(), time.Now().UnixMicro()}
				})
			})
			c.tell("88 " + strconv.FormatInt(handed.UnixMicro(), 10) + " t")
			require.False(t, w.isDone(), "granted without the replicas")
			require.Len(t, c.evals(n), 1, "the waiter asks at once")
			time.Sleep(time.Second)
			require.False(t, w.isDone())
			require.Greater(t, len(c.evals(n)), 1, "the waiter asks again")
			c.set(func() { c.replicas = 2 })
			time.Sleep(2 * time.Second)
			require.True(t, w.isDone())
			require.NoError(t, w.err)
			require.EqualValues(t, 88, w.attempt.Fence)
			require.WithinDuration(t, handed.Add(-time.Millisecond), w.attempt.Since, time.Microsecond)
		})
	}
}

// A wait ends if the user has no right to WAIT. Otherwise it would keep the lock from everybody, and
// never be granted it. It says who held the lock, so that the Client releases the token.
func TestHandoverWithoutRightToWait(t *testing.T) {
	replicatedBubble(t, func(t *testing.T, c *replicatedConn, l *Locker) {
		w := begin(t, l, "k", "t")
		c.set(func() {
			c.noWait = errors.New("NOPERM this user has no permissions to run the 'wait' command")
			c.eval = always(func() []any {
				return []any{int64(answerFound), int64(88), time.Now().UnixMicro(), time.Now().UnixMicro()}
			})
		})
		time.Sleep(10 * time.Second) // until it checks in
		require.True(t, w.isDone())
		require.ErrorIs(t, w.err, dlock.ErrInvalid)
		require.ErrorContains(t, w.err, "'wait'")
		require.NotEmpty(t, w.attempt.Holder)
	})
}

// A message that overtakes the answer to a call is no grant either.
func TestEarlyMessageIsAHint(t *testing.T) {
	replicatedBubble(t, func(t *testing.T, c *replicatedConn, l *Locker) {
		w := begin(t, l, "k", "t")
		time.Sleep(10 * time.Second)
		answer := make(chan []any)
		c.set(func() { c.eval = always(func() []any { return <-answer }) })
		c.on(Event{Kind: Subscribed})
		for n := len(c.evals(0)); len(c.evals(n)) == 0; {
			time.Sleep(100 * time.Millisecond) // until it checks in
		}
		asked := time.Now()
		time.Sleep(time.Millisecond)
		c.tell("88 " + strconv.FormatInt(time.Now().UnixMicro(), 10) + " t")
		answer <- []any{int64(answerWaits), int64(fakeTicket), int64(0), asked.UnixMicro(), "H", int64(60_000)}
		require.False(t, w.isDone(), "granted without the replicas")
		c.set(func() { c.replicas = 2 })
		answer <- []any{int64(answerFound), int64(88), time.Now().UnixMicro(), time.Now().UnixMicro()}
		require.True(t, w.isDone())
		require.NoError(t, w.err)
	})
}

func TestWithReplicasRefuses(t *testing.T) {
	for _, c := range []struct {
		conn    Conn
		n       int
		timeout time.Duration
		want    string
	}{
		{new(replicatedConn), -1, time.Second, "WithReplicas(-1, 1s)"},
		{new(replicatedConn), 1, time.Millisecond - 1, "WithReplicas(1, 999.999µs)"},
		{new(replicatedConn), 1, -time.Second, "WithReplicas(1, -1s)"},
		{new(fakeConn), 1, time.Second, "*rediscore.fakeConn"},
	} {
		l := New(c.conn, WithReplicas(c.n, c.timeout))
		_, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, c.want)
		require.True(t, dlock.NoEffect(err))
		require.NoError(t, l.Close())
	}
	f := &fakeConn{eval: func(context.Context, Call) (any, error) { return int64(8), nil }}
	l := New(f, WithReplicas(0, 0))
	attempt, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
	require.NoError(t, err)
	require.True(t, attempt.Acquired)
}

func TestReplicationMilliseconds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	require.EqualValues(t, 1000, Replication{1, time.Second}.Milliseconds(ctx))
	require.InDelta(t, 3_600_000, Replication{1, 2 * time.Hour}.Milliseconds(ctx), 100_000)
	ctx, cancel = context.WithTimeout(t.Context(), -1)
	defer cancel()
	require.EqualValues(t, 1, Replication{1, time.Second}.Milliseconds(ctx), "0 means for ever")
}

// Calls for one master go together. Those that are redirected follow, a few times.
func TestEvalByMaster(t *testing.T) {
	moved := errors.New("MOVED 7 b")
	for name, c := range map[string]struct {
		errs map[string]error // of calls on a node, "?" before the name for ASKING
		want map[string]int   // how many calls were made there
		err  string
	}{
		"quiet":        {nil, map[string]int{"a": 3}, ""},
		"moved":        {map[string]error{"a": moved}, map[string]int{"a": 3, "b": 3}, ""},
		"ask":          {map[string]error{"a": errors.New("ASK 7 b")}, map[string]int{"a": 3, "?b": 3}, ""},
		"moved to ask": {map[string]error{"a": moved, "b": errors.New("ASK 7 a")}, map[string]int{"a": 3, "b": 3, "?a": 3}, ""},
		"for ever":     {map[string]error{"a": moved, "b": moved}, map[string]int{"a": 3, "b": 9}, "MOVED 7 b"},
		"to nowhere":   {map[string]error{"a": errors.New("MOVED 7 x")}, map[string]int{"a": 3}, ErrNoMaster.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			asked, got := 0, make(map[string]int)
			results := make([]Result, 3)
			EvalByMaster(make([]Call, 3), results, func(_ Call, address string) (string, error) {
				switch address {
				case "":
					return "a", nil
				case "x":
					asked++
					return "", ErrNoMaster
				}
				return address, nil
			}, func(node string, asking bool, numbers []int) {
				mu.Lock()
				defer mu.Unlock()
				if asking {
					node = "?" + node
				}
				got[node] += len(numbers)
				for _, i := range numbers {
					results[i] = Result{Reply: node, Err: c.errs[node]}
				}
			})
			require.Equal(t, c.want, got)
			require.LessOrEqual(t, asked, 1, "each address is looked up once")
			for _, r := range results {
				if c.err == "" {
					require.NoError(t, r.Err)
				} else {
					require.EqualError(t, r.Err, c.err)
				}
			}
		})
	}
	results := make([]Result, 1)
	EvalByMaster(make([]Call, 1), results, func(Call, string) (string, error) { return "", ErrNoMaster }, nil)
	require.Equal(t, ErrNoMaster, results[0].Err)
}
