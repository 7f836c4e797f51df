package owed

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
)

var errDown = errors.New("down")

// A server is what the calls of a Queue are for.
type server struct {
	*Queue
	answer  Answer
	takes   time.Duration // until the answer
	start   time.Time
	sent    map[any][]time.Duration // when
	done    map[any]error           // of those that are owed no more
	changes int
}

func in(t *testing.T, f func(t *testing.T, s *server)) {
	bubble.Test(t, func(t *testing.T) {
		s := &server{start: time.Now(), sent: make(map[any][]time.Duration), done: make(map[any]error)}
		s.Queue = New(s.send, func(c *Call, err error) { s.done[c.For] = err }, func() { s.changes++ }, false)
		f(t, s)
		s.Finish(nil)
	})
}

func idle() bool { return true }

func (s *server) send(c *Call, sure bool) {
	s.mu.Lock()
	sent, answer := time.Now(), s.answer
	s.sent[c.For] = append(s.sent[c.For], time.Since(s.start))
	s.mu.Unlock()
	time.Sleep(s.takes)
	answer.Final = answer.Final || sure && answer.Err == nil
	s.Tried(c, sent, answer)
}

// says makes the server give another answer.
func (s *server) says(a Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = a
}

// after lets time pass, and returns how many tries of a call were sent, and how many calls are owed.
func (s *server) after(d time.Duration, what any) (tries, owed int) {
	time.Sleep(d)
	synctest.Wait()
	owed, _ = s.Count()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sent[what]), owed
}

// total returns how many tries were sent.
func (s *server) total() (n int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sent := range s.sent {
		n += len(sent)
	}
	return n
}

func TestAnswered(t *testing.T) {
	in(t, func(t *testing.T, s *server) {
		s.answer.Final = true
		require.True(t, s.Add(&Call{For: 1, TTL: time.Hour}))
		tries, owed := s.after(0, 1)
		require.Equal(t, 1, tries)
		require.Zero(t, owed)
		require.Equal(t, map[any]error{1: nil}, s.done)
		require.Equal(t, 1, s.changes)
		require.False(t, s.Seal(s.Queue.mu.TryLock), "nothing ends meanwhile")
		require.True(t, s.Seal(idle))
		require.False(t, s.Add(&Call{For: 2, TTL: time.Hour}))
	})
}

// A call without an answer is tried again soon, one that is refused more rarely, and one that was answered a few times.
func TestPauses(t *testing.T) {
	for _, row := range []struct {
		answer Answer
		tries  int // within 10 s
		sealed bool
	}{
		{Answer{Err: errDown}, 12, false},
		{Answer{Err: errDown, Refused: true}, 3, true},
		{Answer{}, 4, true},
	} {
		in(t, func(t *testing.T, s *server) {
			s.answer = row.answer
			s.Add(&Call{For: 1, TTL: time.Minute})
			tries, owed := s.after(10*time.Second, 1)
			require.InDelta(t, row.tries, tries, 1)
			require.Equal(t, 1, owed)
			require.Equal(t, row.sealed, s.Seal(idle))
			_, owed = s.after(time.Minute, 1)
			require.Zero(t, owed, "its time has passed")
			require.Equal(t, row.answer.Err, s.done[1])
		})
	}
}

// A try that hangs is repeated, and given up at the end of the time.
func TestHangs(t *testing.T) {
	in(t, func(t *testing.T, s *server) {
		s.takes = time.Hour
		s.Add(&Call{For: 1, TTL: 10 * time.Second})
		tries, _ := s.after(9*time.Second, 1)
		require.GreaterOrEqual(t, tries, 9)
		_, owed := s.after(3*time.Second, 1)
		require.Zero(t, owed)
		require.Equal(t, ErrUnanswered, s.done[1])
		time.Sleep(time.Hour)
	})
}

// While the server is away, one call is tried every half second. Then all follow at once, and the two lanes take turns.
func TestAway(t *testing.T) {
	in(t, func(t *testing.T, s *server) {
		s.answer.Err = errDown
		for i := range 100 {
			s.Add(&Call{For: i, Lane: i / 50, TTL: time.Hour})
		}
		time.Sleep(time.Minute)
		before := s.total()
		time.Sleep(time.Minute)
		require.InDelta(t, 120, s.total()-before, 2)
		s.says(Answer{Final: true})
		_, owed := s.after(time.Second, 0)
		require.Zero(t, owed)
	})
}

// Hurry tries at once what waits for its next try.
func TestHurry(t *testing.T) {
	in(t, func(t *testing.T, s *server) {
		s.answer.Err = errDown
		s.Add(&Call{For: 1, TTL: time.Hour})
		back := &Call{For: 2, TTL: time.Hour, Hold: time.Now().Add(time.Hour)}
		s.Add(back)
		s.Add(&Call{For: 3, TTL: time.Hour, Hold: time.Now().Add(time.Hour), Answered: true})
		before, _ := s.after(10*time.Second+50*time.Millisecond, 1)
		require.Equal(t, []*Call{back}, s.Hurry())
		tries, _ := s.after(0, 1)
		require.Equal(t, before+1, tries)
		early, unanswered, last := s.Finish(errors.New("over"))
		require.True(t, early)
		require.Equal(t, 2, unanswered)
		require.Equal(t, errDown, last)
		require.EqualError(t, s.done[1], "over")
		require.EqualError(t, s.done[2], "over")
		require.NoError(t, s.done[3])
	})
}

// A call that is held back is tried when Hold has passed; a moot one is dropped then, unless it was resumed.
func TestHold(t *testing.T) {
	in(t, func(t *testing.T, s *server) {
		s.answer.Final = true
		hold := time.Now().Add(time.Minute)
		calls := []*Call{{For: 0}, {For: 1, Moot: true}, {For: 2, Moot: true}}
		for _, c := range calls {
			c.TTL, c.Hold = time.Hour, hold
			s.Add(c)
		}
		require.True(t, s.Kept(calls[0], time.Now(), time.Second, Answer{Err: errDown}), "again")
		require.False(t, s.Seal(idle))
		require.False(t, s.Kept(calls[0], time.Now(), time.Second, Answer{}))
		require.True(t, s.Resume(calls[2]))
		tries, owed := s.after(time.Minute-1, 0)
		require.Zero(t, tries)
		require.Equal(t, 3, owed)
		_, owed = s.after(1, 0)
		require.Zero(t, owed)
		require.Equal(t, map[any][]time.Duration{0: {time.Minute}, 2: {time.Minute}}, s.sent)
		require.Equal(t, ErrUnanswered, s.done[1])
		require.False(t, s.Resume(calls[1]))
		require.False(t, s.Kept(calls[1], time.Now(), time.Second, Answer{Err: errDown}))
	})
}

// A call that cannot be kept, or need not be, is dropped.
func TestKeptInVain(t *testing.T) {
	in(t, func(t *testing.T, s *server) {
		hold := time.Now().Add(time.Minute)
		gone, moot := &Call{For: 1, TTL: time.Hour, Hold: hold}, &Call{For: 2, TTL: time.Hour, Hold: hold, Moot: true}
		s.Add(gone)
		s.Add(moot)
		require.False(t, s.Kept(gone, time.Now(), time.Second, Answer{Final: true}))
		require.False(t, s.Kept(moot, time.Now(), time.Second, Answer{}))
		_, owed := s.after(0, 1)
		require.Zero(t, owed)
	})
}

// Of too many calls, the oldest is dropped.
func TestTooMany(t *testing.T) {
	in(t, func(t *testing.T, s *server) {
		s.answer.Err = errDown
		for i := range maxCalls + 1 {
			s.Add(&Call{For: i, TTL: time.Hour})
		}
		owed, dropped := s.Count()
		require.Equal(t, maxCalls, owed)
		require.EqualValues(t, 1, dropped)
		require.Equal(t, map[any]error{0: ErrTooMany}, s.done)
	})
}

// Tries that hang are silence, too: soon no more than one is sent every half second.
func TestManyHang(t *testing.T) {
	in(t, func(t *testing.T, s *server) {
		s.takes = time.Hour
		for i := range 30 {
			s.Add(&Call{For: i, TTL: time.Hour})
		}
		time.Sleep(5 * time.Second)
		before := s.total()
		time.Sleep(10 * time.Second)
		require.InDelta(t, 20, s.total()-before, 2)
		time.Sleep(3 * time.Hour) // until all tries have returned
	})
}

// The pauses after the first answer do not depend on how long it took.
func TestAnsweredLate(t *testing.T) {
	in(t, func(t *testing.T, s *server) {
		s.answer.Err = errDown
		s.Add(&Call{For: 1, TTL: time.Hour})
		time.Sleep(time.Minute)
		s.says(Answer{})
		before, _ := s.after(0, 1)
		tries, _ := s.after(2*time.Second, 1)
		require.GreaterOrEqual(t, tries-before, 3)
	})
}

// What is known of a call that was held back decides whether it is tried: never, once, or as one of which nothing is
// known. If it was dropped without a final answer, it is tried once more; not if the answer was final, or after the end.
func TestSettle(t *testing.T) {
	const held, ttl = time.Second, 10 * time.Second
	for name, test := range map[string]struct {
		at     time.Duration // when it is settled
		answer Answer        // to the tries before
		settle func(s *server, c *Call)
		want   int // tries from then on
	}{
		"nothing is owed":         {held / 2, Answer{}, func(s *server, c *Call) { s.Settle(c, false) }, 0},
		"nothing, after all":      {2 * held, Answer{}, func(s *server, c *Call) { s.Settle(c, false) }, 0},
		"owed":                    {held / 2, Answer{}, func(s *server, c *Call) { s.Settle(c, true) }, 1},
		"owed, twice":             {held / 2, Answer{}, func(s *server, c *Call) { s.Settle(c, true); s.Settle(c, true) }, 1},
		"owed, after tries":       {2 * held, Answer{}, func(s *server, c *Call) { s.Settle(c, true) }, 1},
		"owed, after its time":    {2 * ttl, Answer{Err: errDown}, func(s *server, c *Call) { s.Settle(c, true) }, 1},
		"nothing, after its time": {2 * ttl, Answer{Err: errDown}, func(s *server, c *Call) { s.Settle(c, false) }, 0},
		"owed, after the last":    {2 * held, Answer{Final: true}, func(s *server, c *Call) { s.Settle(c, true) }, 0},
		"owed, after the end":     {held / 2, Answer{}, func(s *server, c *Call) { s.Finish(nil); s.Settle(c, true) }, 0},
		"unknown":                 {held / 2, Answer{}, func(s *server, c *Call) { s.Due(c); s.Due(c) }, 7},
		"unknown, later":          {2 * ttl, Answer{}, func(s *server, c *Call) { s.Due(c) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, s *server) {
				c := &Call{For: 1, TTL: ttl, Hold: time.Now().Add(held)}
				s.answer = test.answer
				s.Add(c)
				before, _ := s.after(test.at, 1)
				if test.at < held {
					require.Zero(t, before, "it is held back")
				}
				s.says(Answer{})
				test.settle(s, c)
				tries, _ := s.after(0, 1)
				require.Equal(t, min(test.want, 1), tries-before, "at once")
				tries, owed := s.after(time.Minute, 1)
				require.Equal(t, test.want, tries-before)
				require.Zero(t, owed)
				require.Contains(t, s.done, 1)
			})
		})
	}
}

// More tries are in flight at once for a server that gets them together.
func TestTriesTogether(t *testing.T) {
	for combined, most := range map[bool]int{false: 8, true: 128} {
		in(t, func(t *testing.T, s *server) {
			s.Queue = New(s.send, func(*Call, error) {}, func() {}, combined)
			s.takes = 3 * time.Second
			for i := range 1000 {
				s.Add(&Call{For: i, TTL: time.Minute})
			}
			synctest.Wait()
			require.Equal(t, most, s.workers.Jobs)
			s.Finish(nil)
			time.Sleep(s.takes)
		})
	}
}

// The answer to a try from before a call was settled does not stand for the one that follows.
func TestSettleDuringTry(t *testing.T) {
	in(t, func(t *testing.T, s *server) {
		s.takes = 20 * time.Millisecond
		c := &Call{For: 1, TTL: time.Minute}
		s.Add(c)
		s.after(10*time.Millisecond, 1)
		s.Settle(c, true)
		tries, _ := s.after(12*time.Millisecond, 1) // the first one was answered
		require.Equal(t, 2, tries)
		require.False(t, s.Seal(idle), "the second one is under way")
		_, owed := s.after(10*time.Millisecond, 1)
		require.Zero(t, owed)
		require.True(t, s.Seal(idle))
	})
}
