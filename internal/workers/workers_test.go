package workers

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
)

// start makes a Pool that does jobs; look returns how many have begun, and how many are under way.
func start(p *Pool, jobs int, job func()) (look func() [2]int) {
	n := 0
	p.Mu = &sync.Mutex{}
	p.Next = func() func() {
		if n == jobs {
			return nil
		}
		n++
		return job
	}
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Wake()
	return func() [2]int {
		synctest.Wait()
		p.Mu.Lock()
		defer p.Mu.Unlock()
		return [2]int{n, p.Jobs}
	}
}

func TestPool(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := Pool{Size: 3, Most: 5, HungAfter: time.Minute}
		look := start(&p, 7, func() { time.Sleep(time.Second) })
		require.Equal(t, [2]int{3, 3}, look())
		time.Sleep(time.Second)
		require.Equal(t, [2]int{6, 3}, look())
		time.Sleep(time.Second)
		require.Equal(t, [2]int{7, 1}, look())
		time.Sleep(time.Second)
		require.Equal(t, [2]int{7, 0}, look())
	})
}

// Jobs that hang make room for others, but not for any number of them.
func TestHung(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := Pool{Size: 3, Most: 5, HungAfter: time.Second}
		look := start(&p, 20, func() { time.Sleep(time.Minute) })
		time.Sleep(time.Second)
		require.Equal(t, [2]int{5, 5}, look())
		time.Sleep(time.Minute)
		require.Equal(t, [2]int{10, 5}, look(), "three that end, and two later")
		time.Sleep(time.Hour)
		require.Equal(t, [2]int{20, 0}, look())
		require.Zero(t, p.prompt)
	})
}

// A job that ends its goroutine costs no room.
func TestGoexit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := Pool{Size: 1, Most: 1, HungAfter: time.Second}
		look := start(&p, 10, runtime.Goexit)
		require.Equal(t, [2]int{10, 0}, look())
	})
}

func TestEach(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var running, highest, sum atomic.Int64
		begun := time.Now()
		require.Nil(t, Each(10, 4, func(i int) bool {
			highest.Store(max(highest.Load(), running.Add(1)))
			time.Sleep(time.Second)
			running.Add(-1)
			sum.Add(int64(i))
			return true
		}))
		require.EqualValues(t, 4, highest.Load())
		require.EqualValues(t, 45, sum.Load())
		require.Equal(t, 3*time.Second, time.Since(begun))
	})
	require.Nil(t, Each(0, 4, nil))
}

// After a call that says so, or panics, no more are made.
func TestEachStops(t *testing.T) {
	for _, panics := range []bool{false, true} {
		var calls []int
		got := Each(10, 1, func(i int) bool {
			if calls = append(calls, i); i == 3 && panics {
				panic("fault")
			}
			return i < 3
		})
		require.Equal(t, panics, got == "fault")
		require.Equal(t, []int{0, 1, 2, 3}, calls)
	}
}
