package election_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/election"
	"github.com/dlock-go/dlock/internal/cast"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ttl = 10 * time.Second // unless a test says otherwise

var errAway = errors.New("the store is away")

type leadFunc = func(context.Context, *dlock.Lease) error

// A group is the candidates of one test. No other may lead when one begins.
type group struct {
	*cast.World
	two   bool // may lead at once
	mu    sync.Mutex
	all   []*candidate
	terms []term
}

// A term begins and ends with lead. While it goes on, and if lead is not the usual one, end is zero.
type term struct{ begin, end time.Time }

type candidate struct {
	*election.Election
	client *dlock.Client
	stop   func()
	ended  chan struct{}
	err    error // of Run, after ended
}

// inBubble calls f in virtual time. The candidates end after that.
func inBubble(t *testing.T, store string, f func(*group)) {
	cast.In(t, store, func(w *cast.World) { f(&group{World: w}) })
}

// wait lets time pass, and everybody do what is due.
func wait(d time.Duration) { time.Sleep(d); synctest.Wait() }

// stand starts a candidate in a process of its own, and waits until that leads or waits. A nil lead leads until its ctx ends.
func (g *group) stand(lead leadFunc, opts ...dlock.Option) *candidate {
	opts = append([]dlock.Option{dlock.WithOwner(string(rune('a' + len(g.all)))), dlock.WithTTL(ttl)}, opts...)
	return g.standWith(g.Process(opts...).Client, lead)
}

func (g *group) standWith(client *dlock.Client, lead leadFunc) *candidate {
	c := &candidate{client: client, ended: make(chan struct{})}
	c.Election = election.New(c.client, "leader")
	ctx, cancel := context.WithCancel(g.Context())
	c.stop = func() { cancel(); <-c.ended }
	g.all = append(g.all, c)
	g.Cleanup(func() { c.stop(); assert.NoError(g, c.client.Close()) })
	go func() {
		defer close(c.ended)
		c.err = c.Run(ctx, func(ctx context.Context, l *dlock.Lease) error {
			g.mu.Lock()
			n := len(g.terms)
			g.terms = append(g.terms, term{begin: time.Now()})
			if !g.two && ctx.Err() == nil {
				assert.Same(g, c, g.leader(), "one begins to lead")
			}
			g.mu.Unlock()
			if lead != nil {
				return lead(ctx, l)
			}
			<-ctx.Done()
			g.mu.Lock()
			defer g.mu.Unlock()
			g.terms[n].end = time.Now()
			return context.Cause(ctx)
		})
	}()
	wait(100 * time.Millisecond)
	return c
}

func (c *candidate) leads() bool { return c.IsLeader(context.Background()) == nil }

// leader returns the one that leads, or nil.
func (g *group) leader() (leader *candidate) {
	for _, c := range g.all {
		if c.leads() {
			assert.Nil(g, leader, "two lead")
			leader = c
		}
	}
	return leader
}

// When a leader resigns, the next in the queue leads after one round trip. Where nobody queues, another
// leads within a second.
func TestOrderlyChanges(t *testing.T) {
	const rtt = 2 * time.Millisecond
	for _, test := range []struct {
		queue      bool
		candidates int
		pause, gap time.Duration
	}{{true, 3, 400 * time.Millisecond, rtt}, {false, 2, time.Second, time.Second}} {
		inBubble(t, "memory", func(g *group) {
			g.Memory.Delay(rtt)
			for range test.candidates {
				if test.queue {
					g.stand(nil)
				} else {
					g.standWith(dlock.New(struct{ dlock.Locker }{g.Memory}, dlock.WithTTL(ttl)), nil)
				}
			}
			for n := range 200 {
				g.all[n%test.candidates].Resign()
				wait(test.pause)
				require.Same(g, g.all[(n+1)%test.candidates], g.leader(), "after change %d", n+1)
				require.LessOrEqual(g, g.terms[n+1].begin.Sub(g.terms[n].end), test.gap)
			}
		})
	}
}

func TestResign(t *testing.T) {
	inBubble(t, "memory", func(g *group) {
		var causes []error
		a := g.stand(func(ctx context.Context, l *dlock.Lease) error {
			<-ctx.Done()
			causes = append(causes, context.Cause(ctx))
			assert.Nil(g, g.leader())
			time.Sleep(time.Minute)
			assert.NoError(g, l.Err(), "renewed until lead returns")
			return errors.New("ignored")
		})
		b := g.stand(nil, dlock.WithMaxWait(0))
		b.Resign()
		require.Same(g, a, g.leader(), "Resign of another")
		a.Resign()
		wait(59 * time.Second)
		require.Nil(g, g.leader(), "lead has not returned")
		wait(2 * time.Second)
		require.Same(g, b, g.leader())
		b.Resign()
		b.stop()
		wait(time.Second)
		a.Resign()
		wait(61 * time.Second)
		require.Same(g, a, g.leader(), "alone")
		require.Equal(g, []error{election.ErrResigned, election.ErrResigned}, causes)
		require.Len(g, g.terms, 4)
	})
}

// Near the deadline the term is over, even if a renewal succeeds after all.
func TestEarlyEndIsFinal(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		30 * time.Second:       time.Second,
		2 * time.Second:        (2*time.Second - 22*time.Millisecond) / 4,
		200 * time.Millisecond: (200*time.Millisecond - 4*time.Millisecond) / 4,
	} {
		inBubble(t, "memory", func(g *group) {
			var left, gained time.Duration
			g.stand(func(ctx context.Context, l *dlock.Lease) error {
				<-ctx.Done()
				if gained > 0 {
					return nil
				}
				left = time.Until(l.Deadline())
				var lost *dlock.LostError
				assert.ErrorAs(g, context.Cause(ctx), &lost)
				assert.Nil(g, g.leader())
				g.Memory.Fail(nil)
				time.Sleep(ttl)
				gained = time.Until(l.Deadline())
				assert.Nil(g, g.leader(), "after a renewal")
				return nil
			}, dlock.WithTTL(ttl))
			wait(ttl)
			require.NotNil(g, g.leader())
			g.Memory.Fail(errAway)
			wait(3 * ttl)
			require.Equal(g, want, left, "left of a lease of %v when ctx ended", ttl)
			require.Greater(g, gained, left)
			require.NotNil(g, g.leader(), "the next term")
			require.Len(g, g.terms, 2)
		})
	}
}

// IsLeader looks at the clocks: in a process that was stopped, the timer that ends lead's ctx may be late.
func TestIsLeaderLooksAtTheClock(t *testing.T) {
	inBubble(t, "memory", func(g *group) {
		var end time.Time
		a := g.stand(func(ctx context.Context, l *dlock.Lease) error {
			end = l.Deadline().Add(-time.Second)
			<-ctx.Done()
			return nil
		})
		g.Memory.Fail(errAway)
		var all sync.WaitGroup
		for range 50 { // some of them come before the timer
			all.Go(func() { time.Sleep(time.Until(end)); assert.False(g, a.leads(), "at the end of the term") })
		}
		all.Wait()
		g.Memory.Fail(nil)
	})
}

// late delays the answers to waits.
type late struct{ dlock.Forward }

func (l late) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	defer time.Sleep(4 * time.Second)
	return l.Forward.Acquire(ctx, key, token, ttl)
}

// A grant after a wait is for 5 s. If little of that is left when the answer comes, ctx nevertheless ends a
// second before the deadline, once the lease was renewed.
func TestMarginGrows(t *testing.T) {
	inBubble(t, "memory", func(g *group) {
		a, left := g.stand(nil), time.Duration(0)
		g.standWith(dlock.New(late{dlock.Forward{Locker: g.Memory}}, dlock.WithTTL(ttl)), func(ctx context.Context, l *dlock.Lease) error {
			<-ctx.Done()
			left = max(left, time.Until(l.Deadline()))
			return nil
		})
		a.stop()
		wait(time.Minute)
		g.Memory.Fail(errAway)
		wait(time.Minute)
		require.Equal(g, time.Second, left)
		g.Memory.Fail(nil)
		wait(time.Minute)
	})
}

// A lead that gives its lease up goes to the end of the queue, as one that resigns.
func TestLeadThatReleases(t *testing.T) {
	inBubble(t, "memory", func(g *group) {
		terms := 0
		g.stand(func(_ context.Context, l *dlock.Lease) error { terms++; return l.Release() })
		wait(10 * time.Second)
		require.InDelta(g, 34, terms, 1)
	})
}

// An outage of less than two thirds of the TTL and a second changes nothing. After one of three TTL
// somebody leads again. In memory, waits go on in an outage, so that a waiter is granted the lock.
func TestOutages(t *testing.T) {
	for name, strike := range map[string]func(*memory.Locker, bool){
		"fails": func(s *memory.Locker, on bool) { s.Fail(map[bool]error{true: errAway}[on]) },
		"hangs": func(s *memory.Locker, on bool) { s.Delay(map[bool]time.Duration{true: time.Hour}[on]) },
	} {
		inBubble(t, "memory", func(g *group) {
			for range 3 {
				g.stand(nil)
			}
			for n := range 25 {
				long := n >= 20
				strike(g.Memory, true)
				wait(map[bool]time.Duration{false: ttl*2/3 - 1200*time.Millisecond, true: 3 * ttl}[long])
				require.Equal(g, long, g.leader() == nil, "%s: in outage %d", name, n)
				strike(g.Memory, false)
				wait(5 * time.Second)
				require.NotNil(g, g.leader(), "%s: after outage %d", name, n)
				require.True(g, long || len(g.terms) == 1, "%s: terms after outage %d", name, n)
			}
		})
	}
}

// If the store has lost its data, another leads at once, and the old leader goes on until its next renewal.
func TestLostData(t *testing.T) {
	inBubble(t, "memory", func(g *group) {
		g.two = true
		for range 3 {
			g.stand(nil)
		}
		lost := time.Now()
		g.Memory.Wipe()
		wait(ttl)
		require.Len(g, g.terms, 2)
		require.Less(g, g.terms[1].begin.Sub(lost), 100*time.Millisecond)
		require.LessOrEqual(g, g.terms[0].end.Sub(lost), ttl/3)
		g.two = false
		require.NotNil(g, g.leader())
	})
}

// If lead ignores its ctx, another leads after the deadline. Nobody stands twice.
func TestLeadThatIgnoresItsContext(t *testing.T) {
	inBubble(t, "memory", func(g *group) {
		var overrun time.Duration
		a := g.stand(func(context.Context, *dlock.Lease) error { time.Sleep(time.Minute); return nil },
			dlock.WithObserver(&dlock.Observer{ReleaseDone: func(_ context.Context, i dlock.ReleaseDoneInfo) { overrun += i.Overrun }}))
		b := g.stand(nil)
		g.Memory.Fail(errAway)
		wait(ttl * 3 / 2)
		g.Memory.Fail(nil)
		for _, waiting := range []int{0, 1} { // a stands when its lead has returned
			wait(30 * time.Second)
			status, err := a.Leader(g.Context())
			require.NoError(g, err)
			require.Equal(g, "b", status.Owner)
			require.Same(g, b, g.leader())
			require.Equal(g, waiting, status.Waiting)
		}
		require.Greater(g, overrun, 45*time.Second)
	})
}

// Run returns what lead returns of its own accord. A panic goes on. The key is free at once, and no
// other option of the Client ends a term.
func TestLeadReturns(t *testing.T) {
	inBubble(t, "memory", func(g *group) {
		c := dlock.New(g.Memory, dlock.WithMaxWait(0), dlock.WithMinHold(24*time.Hour), dlock.WithMaxHold(time.Minute),
			dlock.WithRenewal(false), dlock.WithTTLFrom(func(string) time.Duration { return time.Second }))
		defer c.Close()
		e := election.New(c, "leader")
		ctx, cancel := context.WithCancel(g.Context())
		run := func(f func() error) error {
			var own context.Context
			defer func() {
				assert.Error(g, own.Err())
				assert.ErrorIs(g, e.IsLeader(ctx), election.ErrNotLeader)
				e.Resign() // does nothing
				status, err := e.Leader(g.Context())
				assert.False(g, status.Held, err)
			}()
			return e.Run(ctx, func(c context.Context, _ *dlock.Lease) error { own = c; time.Sleep(time.Hour); return f() })
		}
		require.NoError(g, run(func() error { return nil }))
		require.Equal(g, errAway, run(func() error { return errAway }))
		require.PanicsWithValue(g, "boom", func() { _ = run(func() error { panic("boom") }) })
		err := run(func() error { g.Memory.Wipe(); return errAway })
		require.ErrorIs(g, err, errAway)
		require.ErrorIs(g, err, dlock.ErrLost, "found by the release")
		require.NoError(g, run(func() error { cancel(); return errAway }))
		require.NoError(g, e.Run(ctx, func(context.Context, *dlock.Lease) error { panic("ctx had ended") }))
	})
}

func TestErrorsThatEndRun(t *testing.T) {
	inBubble(t, "memory", func(g *group) {
		none := func(context.Context, *dlock.Lease) error { panic("leads") }
		a := g.stand(nil)
		require.ErrorIs(g, election.New(a.client, "x").Run(g.Context(), nil), dlock.ErrInvalid, "lead: nil")
		require.ErrorIs(g, a.Run(g.Context(), none), dlock.ErrInvalid, "a second Run")
		require.ErrorIs(g, election.New(a.client, "").Run(g.Context(), none), dlock.ErrInvalid, "no key")
		require.Same(g, a, g.leader())
		b := g.stand(none)
		require.NoError(g, b.client.Close())
		<-b.ended
		require.ErrorIs(g, b.err, dlock.ErrClosed, "closed while it stood")
		ctx, cancel := context.WithTimeout(g.Context(), time.Second)
		defer cancel()
		require.Error(g, a.client.Shutdown(ctx))
		<-a.ended
		require.ErrorIs(g, a.err, dlock.ErrClosed, "shut down while it led")
	})
}

// A process that begins waits while the store is full, until it wants another password.
func TestFullStore(t *testing.T) {
	for _, then := range []error{nil, &dlock.NoEffectError{Err: errors.New("WRONGPASS")}} {
		inBubble(t, "memory", func(g *group) {
			g.Memory.Fail(&dlock.NoEffectError{Err: errors.New("OOM"), State: true})
			a := g.stand(nil)
			wait(10 * time.Minute)
			g.Memory.Fail(then)
			wait(2 * time.Second)
			require.Equal(g, then == nil, a.leads())
			if a.stop(); then != nil {
				require.ErrorContains(g, a.err, "the store refused: WRONGPASS")
			}
		})
	}
}

// A refusal of the first request ends Run. Whoever has led or waited asks again once a second, unless
// the error would come again for ever.
func TestRefusals(t *testing.T) {
	for _, forever := range []error{dlock.ErrInvalid, dlock.ErrClosed, errors.ErrUnsupported} {
		inBubble(t, "memory", func(g *group) {
			asked := 0
			a, b := g.stand(nil), g.stand(nil, dlock.WithObserver(&dlock.Observer{
				AcquireDone: func(ctx context.Context, _ dlock.AcquireDoneInfo) context.Context { asked++; return ctx },
			}))
			g.Memory.Fail(&dlock.NoEffectError{Err: errors.New("WRONGPASS")})
			c := g.stand(nil)
			c.stop()
			require.ErrorContains(g, c.err, "WRONGPASS")
			a.Resign()
			wait(time.Minute) // in memory, b is granted the lock, but cannot renew it
			require.Nil(g, g.leader())
			require.InDelta(g, 50, asked, 10)
			a.stop()
			require.NoError(g, a.err)
			g.Memory.Fail(nil)
			wait(2 * time.Second)
			require.Same(g, b, g.leader())
			g.Memory.Fail(&dlock.NoEffectError{Err: forever})
			wait(2 * ttl)
			b.stop()
			require.ErrorIs(g, b.err, forever)
		})
	}
}

// Run does not give up in an outage before the first term, nor if the lease is lost before that and the
// store then refuses.
func TestBeforeTheFirstTerm(t *testing.T) {
	inBubble(t, "memory", func(g *group) {
		first := true
		g.Memory.Fail(errAway)
		a := g.stand(nil, dlock.WithObserver(&dlock.Observer{
			AcquireDone: func(ctx context.Context, _ dlock.AcquireDoneInfo) context.Context {
				if first {
					g.Memory.Steal("leader", time.Second)
					time.Sleep(time.Minute)
					g.Memory.Fail(&dlock.NoEffectError{Err: errors.New("WRONGPASS")})
					first = false
				}
				return ctx
			}}))
		for range 2 {
			wait(10 * time.Minute)
			require.Empty(g, g.terms)
			g.Memory.Fail(nil)
		}
		wait(2 * time.Second)
		require.Same(g, a, g.leader())
	})
}

func TestRedlock(t *testing.T) {
	inBubble(t, "redlock", func(g *group) {
		for range 3 {
			g.stand(nil)
		}
		for n := range 9 {
			g.all[n%3].Resign()
			wait(time.Second)
			require.Same(g, g.all[(n+1)%3], g.leader(), "the next in the queue")
		}
		g.Away.Store(g.Servers[0], true)
		wait(time.Minute)
		require.Len(g, g.terms, 10, "one node is away")
		g.Away.Store(g.Servers[1], true)
		wait(3 * ttl)
		require.Nil(g, g.leader(), "without a majority")
		g.Away.Delete(g.Servers[1])
		wait(ttl)
		require.NotNil(g, g.leader(), "after the outage, with one node away")
		g.Away.Delete(g.Servers[0])
	})
}
