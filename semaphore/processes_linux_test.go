package semaphore_test

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/proctest"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/semaphore"
)

const (
	processTTL = time.Second
	allowed    = 3
)

// TestWorker is a process of TestProcesses. Two goroutines work with permits, and two with each of the
// controls. They say when work begins, and when it has ended or its lease has.
func TestWorker(t *testing.T) {
	rdb := connect(t, proctest.Args(t)[0])
	s := semaphore.New(dlock.New(goredis.New(rdb), dlock.WithTTL(processTTL)), "sem", allowed)
	work := func(with string, lost <-chan struct{}, until func() time.Time) {
		proctest.Say(with, 1)
		select {
		case <-time.After(rand.N(40 * time.Millisecond)):
		case <-lost:
		}
		proctest.Say(with, -1, min(time.Now().UnixNano(), until().UnixNano()))
	}
	for range 2 {
		go func() {
			for {
				if lease, _, err := s.Acquire(t.Context()); err == nil {
					work("permit", lease.Done(), lease.Deadline)
					lease.Release()
				}
			}
		}()
		for _, counter := range []string{"expires", "leaks"} {
			go func() {
				for ; ; time.Sleep(5 * time.Millisecond) {
					n := rdb.Incr(t.Context(), counter).Val()
					if n == 1 && counter == "expires" {
						rdb.PExpire(t.Context(), counter, processTTL)
					}
					if n <= allowed {
						work(counter, nil, time.Now)
					}
					rdb.Decr(t.Context(), counter)
				}
			}()
		}
	}
	select {}
}

func connect(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// Six processes work, and about five times a second one is killed. It works until just before that. When
// all are dead, all permits are free again. For a long run: DLOCK_LONG=semaphore=60s
func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	length, err := time.ParseDuration(long.Of("semaphore"))
	if err != nil {
		length = 5 * time.Second
	}
	addr := redistest.Start(t).Addr()
	p := proctest.New(t)
	var pids []int
	for range 6 {
		pids = append(pids, p.Start("TestWorker", addr))
	}
	p.Await(1, "permit", 0)
	var killed []proctest.Line
	kill := func(n int) {
		killed = append(killed, proctest.Line{PID: pids[n], At: time.Now()})
		p.Signal(pids[n], syscall.SIGKILL)
	}
	for begin := time.Now(); time.Since(begin) < length; time.Sleep(rand.N(400 * time.Millisecond)) {
		n := rand.IntN(len(pids))
		kill(n)
		pids[n] = p.Start("TestWorker", addr)
	}
	p.Await(len(p.Said("permit", 0))+20, "permit", 0)
	for n := range pids {
		kill(n)
	}
	rdb := connect(t, addr)
	s := semaphore.New(dlock.New(goredis.New(rdb), dlock.WithMaxWait(3*time.Second+2*processTTL)), "sem", allowed)
	for range allowed {
		_, _, err := s.Acquire(t.Context())
		require.NoError(t, err)
	}
	leaked, err := rdb.Get(t.Context(), "leaks").Int()
	require.NoError(t, err)

	most := func(with string) (most int) {
		lines := append(p.Said(with, 0), killed...)
		for i, l := range lines {
			if len(l.Values) == 2 {
				lines[i].At = time.Unix(0, l.Values[1])
			}
		}
		slices.SortStableFunc(lines, func(a, b proctest.Line) int { return a.At.Compare(b.At) })
		now, dead, of := 0, make(map[int]bool), make(map[int]int)
		for _, l := range lines {
			by := -of[l.PID]
			switch {
			case dead[l.PID]: // said between the killing and the death
				continue
			case l.Values == nil:
				dead[l.PID] = true
			default:
				by = int(l.Values[0])
			}
			of[l.PID] += by
			now += by
			most = max(most, now)
		}
		return most
	}
	permits, expired := most("permit"), most("expires")
	t.Logf("%d kills, %d permits taken: at most %d at once. With a counter that expires %d; one that does not has lost %d",
		len(killed), len(p.Said("permit", 0))/2, permits, expired, leaked)
	require.Equal(t, allowed, permits)
	require.Greater(t, expired, allowed)
	require.Positive(t, leaked)
}
