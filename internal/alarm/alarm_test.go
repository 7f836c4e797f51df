package alarm

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
)

// A scene is a Clock, and when each of its alarms rang.
type scene struct {
	sync.Mutex
	*Clock
	start time.Time
	rang  map[any][]time.Duration
}

func in(t *testing.T, f func(t *testing.T, s *scene)) {
	bubble.Test(t, func(t *testing.T) {
		s := &scene{start: time.Now(), rang: make(map[any][]time.Duration)}
		s.Clock = NewClock(&s.Mutex, func(due []*Alarm) {
			s.Lock()
			defer s.Unlock()
			for _, a := range due {
				s.rang[a.For] = append(s.rang[a.For], time.Since(s.start))
			}
		})
		f(t, s)
	})
}

func (s *scene) set(a *Alarm, in time.Duration) {
	s.Lock()
	defer s.Unlock()
	s.Set(a, time.Now().Add(in))
}

func (s *scene) rest() {
	s.Lock()
	defer s.Unlock()
	s.Rest()
}

func TestAlarmsRing(t *testing.T) {
	in(t, func(t *testing.T, s *scene) {
		first, second, never := &Alarm{For: 1}, &Alarm{For: 2}, &Alarm{For: 3}
		s.set(second, time.Hour)
		s.set(never, time.Minute)
		s.set(first, time.Second)
		s.set(second, 90*time.Second) // moved
		s.Lock()
		s.Unset(never)
		s.Unset(never)
		require.Equal(t, 2, s.Len())
		s.Unlock()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		require.Equal(t, map[any][]time.Duration{1: {time.Second}, 2: {90 * time.Second}}, s.rang)
		require.False(t, first.IsSet())
		require.True(t, s.timerAt.IsZero(), "the timer still runs")
		s.set(first, time.Second)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, s.rang[1], 2, "again")
	})
}

// An alarm rings early with one that is due, and never for itself.
func TestSlack(t *testing.T) {
	in(t, func(t *testing.T, s *scene) {
		s.set(&Alarm{For: 1}, time.Second)
		s.set(&Alarm{For: 2, Slack: time.Second}, 2*time.Second)
		s.set(&Alarm{For: 3, Slack: time.Second}, 3*time.Second)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, map[any][]time.Duration{1: {time.Second}, 2: {time.Second}, 3: {3 * time.Second}}, s.rang)
	})
}

// Alarms on the wall clock ring at most a second late when it has run ahead; the others do not notice.
func TestSuspended(t *testing.T) {
	in(t, func(t *testing.T, s *scene) {
		s.set(&Alarm{For: "wall", Wall: true}, time.Minute)
		s.set(&Alarm{For: "other"}, 50*time.Second)
		s.set(&Alarm{For: "late", Wall: true}, time.Hour)
		s.Lock()
		s.Suspend(59 * time.Second)
		s.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, map[any][]time.Duration{"wall": {time.Second}, "other": {50 * time.Second}}, s.rang)
	})
}

// Rest stops the timer of a Clock without alarms, and only of such a one.
func TestRest(t *testing.T) {
	in(t, func(t *testing.T, s *scene) {
		s.rest()
		a := &Alarm{For: 1}
		s.set(a, time.Second)
		s.rest()
		require.False(t, s.timerAt.IsZero())
		s.Lock()
		s.Unset(a)
		s.Unlock()
		s.rest()
		require.True(t, s.timerAt.IsZero())
		s.set(a, time.Second)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, s.rang[1], 1)
	})
}

func TestQueue(t *testing.T) {
	var q Queue
	now := time.Now()
	for _, n := range []int{3, 1, 2} {
		q.Set(&Alarm{For: n}, now.Add(time.Duration(n)))
	}
	a := q.Pop()
	require.Equal(t, 1, a.For)
	q.Return(a)
	require.Len(t, q.All(), 3)
	for n := 1; q.Len() > 0; n++ {
		require.Equal(t, n, q.Pop().For)
	}
}
