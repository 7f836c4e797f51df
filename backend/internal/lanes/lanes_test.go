package lanes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
)

var (
	errLost   = errors.New("lost")
	errClosed = errors.New("closed")
)

// A server executes calls, which are texts. The first word of a call is its route, if it has several. A call that
// contains "renew" is urgent, and one that contains "release" is an ending.
type server struct {
	*testing.T
	*Lanes[string, string, result]
	roundTrip time.Duration
	execution time.Duration // of each call
	failing   bool
	calling   sync.WaitGroup
	answers   []func()
	late      func(func(result)) // of the last call that was sent and had no answer in time

	mu    sync.Mutex
	holds map[string]chan struct{} // a flight with one of these calls takes until it is closed, or ctx ends
	trips []trip
}

type result struct {
	call string
	err  error
	sent bool // if there is an error of the Lanes
}

// A trip is a flight, as the server sees it.
type trip struct {
	begun, ended time.Time
	calls        []string
	ctx          context.Context
}

// serve runs a test in virtual time.
func serve(t *testing.T, lanes, maxLanes, maxFlights int, roundTrip time.Duration, test func(s *server)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		s := newServer(t, lanes, maxLanes, maxFlights, roundTrip)
		defer func() {
			for _, answer := range s.answers {
				answer()
			}
			s.calling.Wait()
			s.Close(errClosed)
		}()
		test(s)
	})
}

func newServer(t *testing.T, lanes, maxLanes, maxFlights int, roundTrip time.Duration) *server {
	s := &server{T: t, roundTrip: roundTrip, holds: make(map[string]chan struct{})}
	s.Lanes = New(Settings[string, string, result]{
		Send: s.send,
		Route: func(_ context.Context, call string, ofBatch bool) string {
			route, _, several := strings.Cut(call, " ")
			if !several || ofBatch && route == "any" {
				return ""
			}
			return route
		},
		Rank: func(call string) Rank {
			switch {
			case strings.Contains(call, "renew"):
				return Urgent
			case strings.Contains(call, "release"):
				return Ending
			}
			return Other
		},
		Failed: func(r result) bool { return r.err != nil },
		Fail: func(err error, late func(func(result))) result {
			if late != nil {
				s.late = late
			}
			return result{err: err, sent: late != nil}
		},
		Limit:      5 * time.Second,
		Lanes:      lanes,
		MaxLanes:   maxLanes,
		MaxFlights: maxFlights,
	})
	return s
}

func (s *server) send(ctx context.Context, calls []string, results []result) {
	s.mu.Lock()
	n, failing, took := len(s.trips), s.failing, s.roundTrip+time.Duration(len(calls))*s.execution
	s.trips = append(s.trips, trip{time.Now(), time.Now().Add(took), slices.Clone(calls), ctx})
	var held chan struct{}
	for _, call := range calls {
		held = cmp.Or(s.holds[call], held)
	}
	s.mu.Unlock()
	var err error
	switch {
	case slices.Contains(calls, "exit"):
		runtime.Goexit()
	case failing:
		err = errLost
	case held != nil:
		select {
		case <-held:
		case <-ctx.Done():
			err = ctx.Err()
		}
		s.mu.Lock()
		s.trips[n].ended = time.Now()
		s.mu.Unlock()
	default:
		time.Sleep(took)
	}
	for i, call := range calls {
		results[i] = result{call: call, err: err}
	}
}

// hold makes flights with a call take until the returned function is called.
func (s *server) hold(call string) (answer func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make(chan struct{})
	s.holds[call] = held
	s.answers = append(s.answers, sync.OnceFunc(func() {
		close(held)
		synctest.Wait()
	}))
	return s.answers[len(s.answers)-1]
}

// occupy takes n lanes until the returned functions are called.
func (s *server) occupy(n int) (answers []func()) {
	for range n {
		call := fmt.Sprint("occupies", len(s.trips))
		answers = append(answers, s.hold(call))
		s.begin(call)
		require.Equal(s, []string{call}, s.last())
	}
	return answers
}

// begin makes a call in another goroutine, and returns when all has come to rest.
func (s *server) begin(call string) <-chan result { return s.beginWith(s.Context(), call) }

func (s *server) beginWith(ctx context.Context, call string) <-chan result {
	done := make(chan result, 1)
	s.calling.Go(func() { done <- s.Do(ctx, call) })
	synctest.Wait()
	return done
}

// succeed waits for the answers to calls.
func (s *server) succeed(all ...<-chan result) {
	s.Helper()
	for _, done := range all {
		require.NoError(s, (<-done).err)
	}
}

// do makes calls of different names, one after the other.
func (s *server) do(n int) {
	s.Helper()
	for range n {
		require.NoError(s, s.Do(s.Context(), fmt.Sprint(len(s.trips))).err)
	}
}

// last is the last flight, when all has come to rest.
func (s *server) last() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trips[len(s.trips)-1].calls
}

func (s *server) sizes(from int) (sizes []int) {
	for _, t := range s.trips[from:] {
		sizes = append(sizes, len(t.calls))
	}
	return sizes
}

func (s *server) sent(call string) bool {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.trips, func(t trip) bool { return slices.Contains(t.calls, call) })
}

// atOnce returns the largest number of flights at the same time.
func (s *server) atOnce(from int) (most int) {
	for _, t := range s.trips[from:] {
		n := 0
		for _, other := range s.trips[from:] {
			if !other.begun.After(t.begun) && other.ended.After(t.begun) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// each makes n calls, one begun after each pause, and waits for the answers.
func (s *server) each(n int, pause time.Duration) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { require.NoError(s, s.Do(s.Context(), fmt.Sprint("call", i)).err) })
		time.Sleep(pause)
	}
	all.Wait()
}

// A call goes at once if a lane is free, in the goroutine of its caller and with its ctx. A panic comes out there, and
// the lane is free again. Nothing is allocated.
func TestLoneCall(t *testing.T) {
	s := newServer(t, 1, 1, 1, 0)
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	defer cancel()
	require.Equal(t, result{call: "a"}, s.Do(ctx, "a"))
	require.Equal(t, ctx, s.trips[0].ctx)
	send := s.settings.Send
	s.settings.Send = func(context.Context, []string, []result) { panic("no reply") }
	for range 3 {
		require.Panics(t, func() { s.Do(ctx, "a") })
		require.Panics(t, func() { s.DoAll(ctx, []string{"a", "b"}, make([]result, 2)) })
	}
	s.settings.Send = send
	require.Equal(t, result{call: "b"}, s.Do(ctx, "b"))
	var got string
	s.settings.Send = func(_ context.Context, calls []string, _ []result) { got = calls[0] }
	require.Zero(t, testing.AllocsPerRun(100, func() { s.Do(ctx, "c") }))
	require.Equal(t, "c", got)
	require.Equal(t, [1]string{}, s.gates[""].idle[0].calls, "nothing of the call is kept")
}

// Calls that find no lane free go together when one is: the urgent ones first, and otherwise as they came. Each gets
// its own result. The caller of the flight before returns meanwhile.
func TestCallsTravelTogether(t *testing.T) {
	serve(t, 2, 2, 2, time.Second, func(s *server) {
		other := s.occupy(2)
		answers := []<-chan result{s.begin("a"), s.begin("renew b"), s.begin("c"), s.begin("renew c")}
		batch, results := make(chan struct{}), make([]result, 3)
		go func() {
			s.DoAll(s.Context(), []string{"d", "e", "renew-f"}, results)
			close(batch)
		}()
		put := make(chan result, 1)
		synctest.Wait()
		begun := time.Now()
		s.Put(s.Context(), "renew-g", func(sent time.Time, r result) {
			require.Equal(s, begun, sent)
			put <- r
		})
		require.Len(s, s.trips, 4, "renew b and renew c have routes of their own")
		other[0]()
		require.Equal(s, []string{"renew-f", "renew-g", "a", "c", "d", "e"}, s.last())
		for i, call := range []string{"a", "renew b", "c", "renew c"} {
			require.Equal(s, result{call: call}, <-answers[i])
		}
		<-batch
		require.Equal(s, []result{{call: "d"}, {call: "e"}, {call: "renew-f"}}, results)
		require.Equal(s, result{call: "renew-g"}, <-put)
		require.Len(s, s.trips, 5)
	})
}

// A batch goes in a flight of its own if a lane is free: those of each route together, and all routes at the same
// time. A batch may have another route than its calls alone.
func TestBatch(t *testing.T) {
	serve(t, 1, 1, 1, time.Second, func(s *server) {
		begun := time.Now()
		calls, results := []string{"x 1", "y 1", "x 2", "any 1", "any 2"}, make([]result, 5)
		s.DoAll(s.Context(), calls, results)
		require.Equal(s, time.Second, time.Since(begun))
		var flights [][]string
		for _, t := range s.trips {
			flights = append(flights, t.calls)
		}
		require.ElementsMatch(s, [][]string{{"x 1", "x 2"}, {"y 1"}, {"any 1", "any 2"}}, flights)
		for i, call := range calls {
			require.Equal(s, result{call: call}, results[i])
		}
		require.NotContains(s, s.gates, "any")
		ctx, cancel := context.WithCancel(s.Context())
		s.DoAll(ctx, []string{"any 3"}, results[:1])
		require.Equal(s, ctx, s.trips[3].ctx, "of the caller")
		require.Contains(s, s.gates, "any")
		s.DoAll(ctx, nil, nil)
		cancel()
	})
}

// A flight has as many calls as the server executes within a round trip, at least 64 and at most 500. An urgent call
// goes in the next flight, however many others there are.
func TestFlightsAreLimited(t *testing.T) {
	for roundTrip, limit := range map[time.Duration]int{0: 64, 5 * time.Millisecond: 164, 100 * time.Millisecond: 500} {
		serve(t, 1, 1, 1, roundTrip, func(s *server) {
			s.do(1)
			const many = 1200
			batch, results := make([]string, many), make([]result, many)
			for i := range batch {
				batch[i] = fmt.Sprint("batch", i)
			}
			answer := s.hold("batch0")
			s.calling.Go(func() { s.DoAll(s.Context(), batch, results) })
			synctest.Wait()
			require.Len(s, s.last(), limit, "of a batch that finds a lane free")
			renewed := s.begin("renew")
			answer()
			s.succeed(renewed)
			s.calling.Wait()
			require.Equal(s, "renew", s.trips[2].calls[0])
			for i, call := range batch {
				require.Equal(s, result{call: call}, results[i])
			}
			require.Equal(s, limit, slices.Max(s.sizes(0)), "round trip of %v", roundTrip)
			require.Len(s, s.trips, 1+many/limit+1)
			s.DoAll(s.Context(), batch[:limit], results[:limit])
			require.Equal(s, batch[:limit], s.last())
		})
	}
	serve(t, 2, 2, 2, time.Second, func(s *server) { // all lanes that are free are taken
		s.DoAll(s.Context(), make([]string, 2*minFlight), make([]result, 2*minFlight))
		require.Equal(s, []int{minFlight, minFlight}, s.sizes(0))
		require.Equal(s, s.trips[0].begun, s.trips[1].begun)
	})
}

// If a flight takes more than a millisecond, there are further lanes: one opens for a call that has waited for 200 µs.
// A slow flight is no reason if others were fast lately, and one that has failed is no measure.
func TestFurtherLanes(t *testing.T) {
	for _, c := range []struct {
		maxLanes  int
		roundTrip time.Duration
		want      int
	}{{10, time.Millisecond, 2}, {10, 20 * time.Millisecond, 10}, {4, 20 * time.Millisecond, 4}, {2, 20 * time.Millisecond, 2}} {
		serve(t, 2, c.maxLanes, 20, 500*time.Microsecond, func(s *server) {
			s.do(1)
			s.roundTrip = c.roundTrip
			s.do(4)
			s.each(40, 250*time.Microsecond)
			require.Equal(s, 2, s.atOnce(0), "it was fast lately")
			s.do(40)
			s.failing = true
			require.ErrorIs(s, s.Do(s.Context(), "fails").err, errLost)
			s.failing = false
			n, begun := len(s.trips), time.Now()
			s.each(200, 250*time.Microsecond)
			require.Equal(s, c.want, s.atOnce(n), "%+v", c)
			if c.want > 2 {
				require.Equal(s, 2*250*time.Microsecond+openAfter, s.trips[n+2].begun.Sub(begun))
			}
		})
	}
}

// Before the first round trip is known, there may be further lanes, one after the other.
func TestFurtherLanesAtFirst(t *testing.T) {
	serve(t, 1, 3, 3, time.Second, func(s *server) {
		begun := time.Now()
		var all []<-chan result
		for i := range 5 {
			all = append(all, s.begin(fmt.Sprint("first", i)))
		}
		time.Sleep(openAfter + 1)
		s.succeed(append(all, s.begin("second"))...)
		for i, want := range []time.Duration{0, openAfter, 2*openAfter + 1} {
			require.Equal(s, want, s.trips[i].begun.Sub(begun))
		}
		require.Equal(s, []int{1, 4, 1}, s.sizes(0))
	})
}

// A flight of 35 calls over a round trip of 2 ms does not make it seem as if it were 0.3 ms: then there
// would be no further lanes.
func TestLargeFlightsOverALongRoundTrip(t *testing.T) {
	serve(t, 2, 10, 20, 2*time.Millisecond, func(s *server) {
		s.execution = 4 * time.Microsecond
		s.each(37, 0)
		require.Contains(s, s.sizes(0), 35)
		s.each(20+2, 0)
		require.Equal(s, 20, len(s.last()))
		require.LessOrEqual(s, s.gates[""].roundTrip, 2*time.Millisecond+s.execution, "without the execution")
		n := len(s.trips)
		s.each(8, 250*time.Microsecond)
		require.Greater(s, s.atOnce(n), 2)
	})
}

// A further lane ends when it has carried little: what comes then travels together again. Another opens later, if there
// may be one. A further lane that has carried much goes on.
func TestFurtherLaneEnds(t *testing.T) {
	const roundTrip, before = 20 * time.Millisecond, 50 * time.Microsecond // the end of the further lane
	for maxLanes, want := range map[int]time.Duration{10: openAfter, 3: before + openAfter} {
		serve(t, 2, maxLanes, 20, roundTrip, func(s *server) {
			s.do(1)
			s.occupy(2)
			third := s.begin("third")
			time.Sleep(openAfter + roundTrip - before)
			come := time.Now()
			fourth := s.begin("fourth")
			s.succeed(third, fourth)
			require.Equal(s, want, s.trips[len(s.trips)-1].begun.Sub(come), "at most %d lanes", maxLanes)
		})
	}
	serve(t, 1, 2, 20, roundTrip, func(s *server) {
		s.do(1)
		s.occupy(1)
		limit := minFlight + int(roundTrip/executionOf)
		s.each(limit+1, 0)
		require.Equal(s, []int{limit, 1}, s.sizes(2))
		require.Equal(s, s.trips[2].ended, s.trips[3].begun)
	})
}

// A flight that takes ten times as long as the fastest lately, and 50 ms, is no lane any more. There are never more
// than MaxFlights. An overdue flight that lands takes no calls along, and the lanes are as before.
func TestOverdueFlights(t *testing.T) {
	for _, roundTrip := range []time.Duration{0, 20 * time.Millisecond} {
		serve(t, 2, 2, 3, roundTrip, func(s *server) {
			s.do(1)
			begun := time.Now()
			answers := s.occupy(2)
			answer := s.hold("third")
			third := s.begin("third")
			time.Sleep(10*max(roundTrip, time.Microsecond) + 50*time.Millisecond - 1)
			require.False(s, s.sent("third"))
			time.Sleep(time.Nanosecond)
			require.True(s, s.sent("third"), "round trip of %v", roundTrip)
			require.Equal(s, 10*max(roundTrip, time.Microsecond)+50*time.Millisecond, s.trips[3].begun.Sub(begun))
			fourth := s.begin("fourth")
			time.Sleep(4 * time.Second)
			require.False(s, s.sent("fourth"), "three flights")
			answers[1]()
			s.succeed(fourth)
			answers[0]()
			answer()
			s.succeed(third)
			s.do(3)
			require.Zero(s, s.gates[""].overdue)
			s.occupy(2)
			s.begin("another")
			require.False(s, s.sent("another"))
		})
	}
	serve(t, 1, 1, 3, time.Millisecond, func(s *server) { // all are overdue, and land in another order
		const patience = 60*time.Millisecond + 1
		s.do(1)
		answers := s.occupy(1)
		for _, call := range []string{"second", "third"} {
			answers = append(answers, s.hold(call))
			s.begin(call)
			time.Sleep(patience)
			require.True(s, s.sent(call))
		}
		s.begin("fourth")
		time.Sleep(time.Second)
		require.False(s, s.sent("fourth"))
		fourth, fifth := s.hold("fourth"), s.begin("fifth")
		answers[1]()
		require.Equal(s, []string{"fourth", "fifth"}, s.last())
		s.begin("sixth")
		answers[2]()
		answers[0]()
		require.False(s, s.sent("sixth"), "a flight that is not overdue takes the lane")
		fourth()
		s.succeed(fifth)
		require.True(s, s.sent("sixth"))
	})
	serve(t, 1, 1, 2, 0, func(s *server) { // one that has carried much
		s.do(1)
		answers := s.occupy(1)
		answer := s.hold("call0")
		for i := range minFlight {
			s.begin(fmt.Sprint("call", i))
		}
		answers[0]()
		require.Len(s, s.last(), minFlight)
		s.hold("next")
		s.begin("next")
		time.Sleep(overdueAfter + time.Millisecond)
		s.begin("another")
		answer()
		require.Equal(s, []string{"next"}, s.last())
	})
	serve(t, 1, 1, 2, 0, func(s *server) { // the first flight may have to connect
		s.occupy(1)
		s.begin("second")
		time.Sleep(11*overdueAfter - 1)
		require.False(s, s.sent("second"))
		time.Sleep(time.Nanosecond)
		require.True(s, s.sent("second"))
	})
}

// If ctx ends before the flight, the call is not sent, now or later. If it ends during the flight, the caller returns
// at once. A flight with several calls has a time limit.
func TestContextOfAFlight(t *testing.T) {
	serve(t, 2, 2, 2, 0, func(s *server) {
		answers := s.occupy(2)
		ctx, cancel := context.WithCancel(s.Context())
		early := s.beginWith(ctx, "early")
		cancel()
		require.Equal(s, result{err: context.Canceled}, <-early)

		s.hold("never")
		never := s.begin("never")
		ctx, cancel = context.WithCancel(s.Context())
		late := []<-chan result{s.beginWith(ctx, "late1"), s.beginWith(ctx, "late2")}
		answers[0]()
		require.Equal(s, []string{"never", "late1", "late2"}, s.last())
		cancel()
		for _, done := range late {
			require.Equal(s, result{err: context.Canceled, sent: true}, <-done)
		}
		begun := time.Now()
		require.ErrorIs(s, (<-never).err, context.DeadlineExceeded)
		require.Equal(s, 5*time.Second, time.Since(begun))
		answers[1]()
		require.False(s, s.sent("early"))
	})
}

// A call that waited for a lane goes with the values of its ctx if it is alone, and without if it is not. The flight
// goes on when that ctx ends.
func TestValuesOfAFlight(t *testing.T) {
	type key struct{}
	for n, want := range map[int]any{1: "value", 2: nil} {
		serve(t, 1, 1, 1, 0, func(s *server) {
			ctx, cancel := context.WithCancel(context.WithValue(s.Context(), key{}, "value"))
			answers := s.occupy(1)
			s.hold("call0")
			for i := range n {
				s.beginWith(ctx, fmt.Sprint("call", i))
			}
			answers[0]()
			require.Len(s, s.last(), n)
			require.Equal(s, want, s.trips[1].ctx.Value(key{}))
			cancel()
			require.NoError(s, s.trips[1].ctx.Err())
		})
	}
}

// A batch of several flights whose ctx ends has the results that have come. The other calls were sent, or will not be.
func TestContextOfABatch(t *testing.T) {
	serve(t, 1, 1, 1, 0, func(s *server) {
		batch, results := make([]string, 200), make([]result, 200)
		for i := range batch {
			batch[i] = fmt.Sprint("batch", i)
		}
		ctx, cancel := context.WithCancel(s.Context())
		answer, done := s.hold("batch64"), make(chan struct{})
		go func() {
			s.DoAll(ctx, batch, results)
			close(done)
		}()
		synctest.Wait()
		cancel()
		<-done
		for i, call := range batch {
			want := result{err: context.Canceled, sent: i < 128}
			if i < 64 {
				want = result{call: call}
			}
			require.Equal(s, want, results[i], call)
		}
		answer()
		require.False(s, s.sent("batch128"))
		require.Equal(s, result{err: context.Canceled, sent: true}, results[64], "the result is not changed later")
	})
}

// A call of Put that waits can be withdrawn: it is not sent, and done is not called. One in flight, or whose result has
// come, cannot.
func TestPut(t *testing.T) {
	serve(t, 1, 1, 1, time.Second, func(s *server) {
		var results []result
		put := func(call string) (withdraw func() bool) {
			return s.Put(s.Context(), call, func(_ time.Time, r result) { results = append(results, r) })
		}
		withdraw := put("a")
		require.False(s, withdraw(), "it is in flight")
		waits := put("b")
		require.True(s, waits())
		require.True(s, waits(), "again")
		time.Sleep(2 * time.Second)
		require.False(s, s.sent("b"))
		require.Equal(s, []result{{call: "a"}}, results)
		require.False(s, withdraw(), "it has its result")
	})
}

// Close refuses the calls that wait for a lane, and those that come and find none free. It waits for flights that
// have no caller. Those of callers go on.
func TestClose(t *testing.T) {
	serve(t, 2, 2, 2, 0, func(s *server) {
		answers := s.occupy(2)
		answer := s.hold("flies")
		flies := s.begin("flies")
		answers[0]()
		waits, urgent := s.begin("waits"), s.begin("renew")
		withdraw := s.Put(s.Context(), "withdrawn", func(time.Time, result) { s.Error("done was called") })
		require.True(s, withdraw())
		var refusals []error
		put := func(call string) {
			s.Put(s.Context(), call, func(_ time.Time, r result) { refusals = append(refusals, r.err) })
		}
		put("waits")
		var closed atomic.Bool
		go func() {
			s.Close(errClosed)
			closed.Store(true)
		}()
		require.Equal(s, result{err: errClosed}, <-waits)
		require.Equal(s, result{err: errClosed}, <-urgent)
		require.Equal(s, result{err: errClosed}, s.Do(s.Context(), "late"))
		put("late")
		s.calling.Go(func() { s.Close(errClosed) }) // again
		synctest.Wait()
		require.Equal(s, []error{errClosed, errClosed}, refusals)
		require.False(s, closed.Load(), "a flight has not ended")
		answer()
		s.succeed(flies)
		synctest.Wait()
		require.True(s, closed.Load())
		s.do(1)
		answers[1]()
		for _, call := range []string{"waits", "renew", "late"} {
			require.False(s, s.sent(call))
		}
	})
}

// Cut ends the flights that have no caller, and no others.
func TestCut(t *testing.T) {
	serve(t, 2, 2, 2, 0, func(s *server) {
		s.occupy(1)
		s.hold("never")
		cut := make(chan error, 1)
		s.Put(s.Context(), "never", func(_ time.Time, r result) { cut <- r.err })
		s.last()
		s.Cut()
		begun := time.Now()
		s.Close(errClosed)
		require.Zero(s, time.Since(begun))
		require.ErrorIs(s, <-cut, context.Canceled)
		require.NoError(s, s.trips[0].ctx.Err())
	})
}

// Idle gates are dropped when there are many, and no others.
func TestGatesAreDropped(t *testing.T) {
	serve(t, 1, 1, 1, 0, func(s *server) {
		answer := s.hold("dead 1")
		s.begin("dead 1")
		waits := s.begin("dead 2")
		for i := range 3 * manyGates {
			require.NoError(s, s.Do(s.Context(), fmt.Sprint(i, " call")).err)
		}
		require.LessOrEqual(s, len(s.gates), manyGates)
		answer()
		s.succeed(waits)

		for i := range 2 * manyGates {
			call := fmt.Sprint(i, " held")
			s.hold(call)
			s.calling.Go(func() { s.Do(s.Context(), call) })
		}
		synctest.Wait()
		require.Greater(s, s.dropAt, 2*manyGates, "the gates are not looked at for each new one")
	})
}

// Of the calls that wait, the urgent go first. Endings go before others, but with these they get half of a flight.
func TestRanks(t *testing.T) {
	serve(t, 1, 1, 1, 0, func(s *server) {
		answer := s.occupy(1)[0]
		for i := range 2 * minFlight {
			for _, text := range []string{"other", "release"} {
				s.calling.Go(func() { s.Do(s.Context(), fmt.Sprint(text, i)) })
			}
			synctest.Wait()
		}
		s.begin("renew")
		n := len(s.trips)
		answer()
		synctest.Wait()
		for _, want := range [][3]int{{1, 32, 31}, {0, 32, 32}, {0, 32, 32}, {0, 32, 32}, {0, 0, 1}} {
			var ranks [3]int
			for i, call := range s.trips[n].calls {
				ranks[s.settings.Rank(call)]++
				require.True(s, i == 0 || s.settings.Rank(s.trips[n].calls[i-1]) <= s.settings.Rank(call))
			}
			require.Equal(s, want, ranks)
			n++
		}
	})
}

// A flight in which nobody waits for an answer keeps its lane, but urgent calls go past it. Its answers still come.
func TestAbandonedFlight(t *testing.T) {
	serve(t, 1, 1, 3, time.Millisecond, func(s *server) {
		s.do(1)
		ctx, cancel := context.WithCancel(s.Context())
		answers := s.occupy(1)
		answer := s.hold("a")
		given := s.beginWith(ctx, "a")
		withdraw := s.Put(s.Context(), "b", func(time.Time, result) {})
		answers[0]()
		require.Equal(s, []string{"a", "b"}, s.last())
		s.hold("renew1")
		s.begin("renew1")
		s.begin("other")
		cancel()
		require.Equal(s, result{err: context.Canceled, sent: true}, <-given)
		require.False(s, s.sent("renew1"), "b is waited for")
		require.False(s, withdraw())
		require.False(s, withdraw())
		require.True(s, s.sent("renew1"))
		s.begin("renew2")
		require.False(s, s.sent("other"))
		require.False(s, s.sent("renew2"), "there is one such lane")
		var late []result
		note := func(r result) { late = append(late, r) }
		s.late(note)
		require.Empty(s, late)
		answer()
		synctest.Wait()
		require.Equal(s, []result{{call: "a"}}, late)
		s.late(note)
		require.Equal(s, []result{{call: "a"}, {call: "a"}}, late, "it has come already")
	})
}

// Where answers come when their callers have given up, flights become smaller, and no further lane opens, until answers
// come in time again. What others wait for at the server counts as well, which no estimate of a call's execution has.
func TestAnswersThatComeTooLate(t *testing.T) {
	serve(t, 2, 10, 20, 2*time.Millisecond, func(s *server) {
		s.do(1)
		limit := minFlight + int(2*time.Millisecond/executionOf)
		s.roundTrip = 20 * time.Millisecond
		for range 10 {
			for i := range 2 * limit {
				ctx, cancel := context.WithTimeout(s.Context(), 30*time.Millisecond)
				s.calling.Go(func() { s.Do(ctx, fmt.Sprint("hurried", i)); cancel() })
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
		n := len(s.trips)
		s.each(limit, 0)
		require.LessOrEqual(s, slices.Max(s.sizes(n)[:4]), limit*2/3)
		require.LessOrEqual(s, s.atOnce(n), 2)
		synctest.Wait()
		s.roundTrip = 2 * time.Millisecond
		s.each(10*limit, 0)
		synctest.Wait()
		require.Zero(s, s.gates[""].halved)
	})
}

// A Send that ends its goroutine, as a mock may, leaves its lane to the calls that wait.
func TestExit(t *testing.T) {
	serve(t, 1, 1, 1, time.Millisecond, func(s *server) {
		answer := s.occupy(1)[0]
		exits, waits := s.begin("exit"), s.begin("waits")
		answer()
		require.Empty(t, (<-exits).call)
		require.Empty(t, (<-waits).call, "of the same flight")
		s.succeed(s.begin("after"))
	})
}
