package stress

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/proctest"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	setProcesses = 8 // with perClient workers each
	setKeys      = 64
	setSize      = 8
	setTTL       = time.Second
)

func setKey(k int) string { return "key" + strconv.Itoa(k) }

// dialForSets connects to a server, or to a cluster if there are several addresses.
func dialForSets(library string, addrs []string) (*rediscore.Locker, func(), error) {
	if len(addrs) > 1 {
		return cluster.libraries[library](addrs)
	}
	for _, l := range libraries {
		if l.name == library {
			return l.dial(addrs[0], patience)
		}
	}
	return nil, nil, errors.New("no library " + library)
}

// TestSetsProcess is a process of TestSets. Its workers hold random sets, and say so, until the end.
func TestSetsProcess(t *testing.T) {
	args := proctest.Args(t)
	nanos, err := strconv.ParseInt(args[1], 10, 64)
	require.NoError(t, err)
	locker, closeClient, err := dialForSets(args[0], args[2:])
	require.NoError(t, err)
	defer closeClient()
	defer locker.Close()
	c := dlock.New(locker, dlock.WithTTL(setTTL), dlock.WithFence(true), dlock.WithMaxWait(calmLimit))
	defer c.Close()
	var workers sync.WaitGroup
	var ids atomic.Int64
	for range perClient {
		workers.Go(func() {
			for time.Now().Before(time.Unix(0, nanos)) {
				workWithSet(t, c, ids.Add(1))
			}
		})
	}
	workers.Wait()
}

func workWithSet(t *testing.T, c *dlock.Client, id int64) {
	set, asked := rand.Perm(setKeys)[:setSize], now()
	var keys []string
	for _, k := range set {
		keys = append(keys, setKey(k))
	}
	err := c.DoAll(t.Context(), keys, func(ctx context.Context, leases *dlock.Leases) error {
		said := []int64{id, asked, now(), leases.Deadline().UnixNano()}
		for i, k := range set {
			said = append(said, int64(k), leases.Lease(keys[i]).Fence())
		}
		proctest.Say("holds", said...)
		time.Sleep(time.Millisecond)
		if err := context.Cause(ctx); err != nil && !errors.Is(err, dlock.ErrLost) {
			t.Errorf("a lease of the set has ended: %v", err)
		}
		proctest.Say("held", id, min(now(), leases.Deadline().UnixNano()))
		return nil
	})
	var lost *dlock.LostError
	switch {
	case errors.As(err, &lost) && lost.Reason == dlock.LossExpired: // on a busy machine
		proctest.Say("lost")
	case err != nil:
		t.Error(err)
	}
}

// TestSets has 32 workers hold random sets of 8 of 64 keys, with each client library, on a server and on a
// cluster whose slots move. After half of the time processes are killed. See the package documentation.
func TestSets(t *testing.T) {
	redistest.Real(t)
	d := shortStress
	if text := long.Of("stress"); text != "" {
		var err error
		d, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	server := redistest.Start(t)
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) { runSets(t, d, l.name, []string{server.Addr()}, func() { time.Sleep(pause) }) })
	}
	moving := redistest.StartCluster(t, 3, 0)
	for library := range cluster.libraries {
		t.Run("Cluster/"+library, func(t *testing.T) {
			moves := 0
			runSets(t, d, library, moving.Addrs(), func() {
				m := moving.StartMigration(t, setKey(rand.IntN(setKeys)))
				m.MoveKeys(t)
				m.Finish(t)
				moves++
			})
			t.Logf("%d slots were moved", moves)
		})
	}
}

// runSets kills a process in each TTL of the second half of d, and calls meanwhile for as long as d lasts.
func runSets(t *testing.T, d time.Duration, library string, addrs []string, meanwhile func()) {
	begun := time.Now().Round(0)
	end, p := begun.Add(d), proctest.New(t)
	start := func() int {
		return p.Start("TestSetsProcess", append([]string{library, fmt.Sprint(end.UnixNano())}, addrs...)...)
	}
	var pids [setProcesses]int
	for i := range pids {
		pids[i] = start()
	}
	var busy sync.WaitGroup
	busy.Go(func() {
		for time.Now().Before(end) {
			meanwhile()
		}
	})
	killed := make(map[int]time.Time)
	for next := begun.Add(d / 2); next.Before(end); next = next.Add(setTTL) {
		time.Sleep(time.Until(next))
		i := rand.IntN(len(pids))
		killed[pids[i]] = time.Now()
		p.Signal(pids[i], syscall.SIGKILL)
		pids[i] = start()
	}
	busy.Wait()
	for _, pid := range pids {
		p.Wait(pid) // it ends when each of its workers has been served
	}
	time.Sleep(setTTL)
	locker, closeClient, err := dialForSets(library, addrs)
	require.NoError(t, err)
	defer closeClient()
	defer locker.Close()
	for k := range setKeys {
		hold, err := locker.Inspect(t.Context(), setKey(k))
		require.NoError(t, err)
		require.Empty(t, hold.Token, "%q is still held", setKey(k))
	}
	judgeSets(t, p, begun, d, killed)
}

// judgeSets checks what processes have said, and logs how many sets there were in the calm half and in the other.
func judgeSets(t *testing.T, p *proctest.Group, begun time.Time, d time.Duration, killed map[int]time.Time) {
	type set struct{ pid, id int64 }
	ends := make(map[set]int64)
	for _, l := range p.Said("held", 0) {
		ends[set{int64(l.PID), l.Values[0]}] = l.Values[1]
	}
	r := history.NewRecorder(begun)
	at := func(ns int64) time.Duration { return r.At(time.Unix(0, ns)) }
	var sets [2]int
	var longest time.Duration
	for _, l := range p.Said("holds", 0) {
		id, asked, start, until := l.Values[0], at(l.Values[1]), at(l.Values[2]), l.Values[3]
		if last, ok := ends[set{int64(l.PID), id}]; ok {
			until = last
		}
		if death, ok := killed[l.PID]; ok {
			until = min(until, death.UnixNano())
		}
		for of := l.Values[4:]; len(of) > 0; of = of[2:] {
			r.Held(&history.Hold{Client: fmt.Sprint(l.PID), Key: setKey(int(of[0])), Asked: asked, Start: start, End: at(until), Fence: of[1]})
		}
		sets[min(1, 2*start/d)]++
		longest = max(longest, start-asked)
	}
	t.Logf("%.0f sets a second; %.0f while %d processes were killed; longest wait %v, %d leases were lost",
		float64(sets[0])/(d/2).Seconds(), float64(sets[1])/(d/2).Seconds(), len(killed), longest.Round(time.Millisecond), len(p.Said("lost", 0)))
	require.NotEmpty(t, killed)
	require.Positive(t, sets[1])
	v, err := history.Model{FenceStep: 8}.Check(r.History())
	require.NoError(t, err)
	if v != nil {
		t.Error(v)
	}
}
