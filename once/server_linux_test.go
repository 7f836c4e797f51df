package once

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	period    = time.Second
	periodTTL = 300 * time.Millisecond
)

// TestReplica is the process of a replica. It runs the job in each period until it is killed, and
// writes to its log.
func TestReplica(t *testing.T) {
	addr := os.Getenv("DLOCK_ONCE_SERVER")
	if addr == "" {
		t.Skip("a child of TestProcesses")
	}
	log, err := os.OpenFile(os.Getenv("DLOCK_ONCE_LOG"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	locker := goredis.New(redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true}))
	j := New(dlock.New(locker, dlock.WithTTL(periodTTL)), "job", period)
	for {
		due := time.Now().Truncate(period).Add(period)
		note := func(what string) {
			fmt.Fprintln(log, what, due.UnixMilli(), os.Getpid(), time.Now().UnixMicro())
		}
		time.Sleep(time.Until(due))
		go func() {
			ran, err := j.Do(t.Context(), j.Due(time.Now()), func(context.Context, *dlock.Lease) error {
				note("begin")
				time.Sleep(100 * time.Millisecond)
				note("end")
				return nil
			})
			if errors.Is(err, dlock.ErrLost) || ran && err != nil {
				note("interrupted")
			}
		}()
	}
}

// A history is what the log says of a period.
type history struct {
	pids        []int       // that have begun
	begun       []time.Time // in the same order
	ended, lost int
}

func read(t *testing.T, log string, due time.Time) (h history) {
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var what string
		var of, at int64
		var pid int
		if n, _ := fmt.Sscan(line, &what, &of, &pid, &at); n < 4 || of != due.UnixMilli() {
			continue
		}
		switch what {
		case "begin":
			h.pids, h.begun = append(h.pids, pid), append(h.begun, time.UnixMicro(at))
		case "end":
			h.ended++
		default:
			h.lost++
		}
	}
	return h
}

// Five processes run a job in each period. In each second period, the process that runs it is killed.
// In others it is stopped for longer than the TTL, or the period begins while the server is
// suspended or being restarted. DLOCK_ONCE_PERIODS is the number of periods.
func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	runtime.LockOSThread() // with which the processes die
	defer runtime.UnlockOSThread()
	server, log := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always"), t.TempDir()+"/log"
	require.NoError(t, os.WriteFile(log, nil, 0o600))
	children := make(map[int]*exec.Cmd)
	start := func() {
		cmd := exec.Command(os.Args[0], "-test.run=^TestReplica$", "-test.timeout=0")
		cmd.Env = append(os.Environ(), "DLOCK_ONCE_SERVER="+server.Addr(), "DLOCK_ONCE_LOG="+log)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		require.NoError(t, cmd.Start())
		children[cmd.Process.Pid] = cmd
	}
	kill := func(pid int) {
		children[pid].Process.Kill()
		children[pid].Wait()
		delete(children, pid)
	}
	defer func() {
		for pid := range children {
			kill(pid)
		}
	}()
	for range 5 {
		start()
	}
	due := time.Now().Truncate(period).Add(2 * period)
	until := func(d time.Duration, enough func(history) bool) (h history) {
		for h = read(t, log, due); !enough(h) && time.Now().Before(due.Add(d)); h = read(t, log, due) {
			time.Sleep(2 * time.Millisecond)
		}
		return h
	}
	begun := func(h history) bool { return len(h.pids) > 0 }
	var count struct{ kills, stops, outages, missed, twiceAfterLoss, twice int }
	deaths := make(map[time.Time]int)
	var periods []time.Time
	var waits []time.Duration // from a death to the next begin
	env, _ := strconv.Atoi(os.Getenv("DLOCK_ONCE_PERIODS"))
	for n := range max(5, env) {
		switch {
		case n%4 == 1:
			count.outages++
			begin, end := server.Stop, server.Restart
			if n%8 == 5 {
				begin, end = server.Suspend, server.Resume
			}
			time.Sleep(time.Until(due.Add(-100 * time.Millisecond)))
			begin()
			time.Sleep(time.Until(due.Add(200 * time.Millisecond)))
			end()
		case n%4 == 3:
			if h := until(period/2, begun); begun(h) && h.ended == 0 {
				count.stops++
				syscall.Kill(h.pids[0], syscall.SIGSTOP)
				time.Sleep(periodTTL + 100*time.Millisecond)
				syscall.Kill(h.pids[0], syscall.SIGCONT)
			}
		default:
			if h := until(period/2, begun); begun(h) && h.ended == 0 {
				kill(h.pids[0])
				dead := time.Now()
				count.kills++
				deaths[due]++
				if h = until(period, func(h history) bool { return len(h.pids) > 1 }); len(h.pids) > 1 {
					waits = append(waits, h.begun[1].Sub(dead))
				}
				start()
			}
		}
		due = due.Add(period)
		time.Sleep(time.Until(due.Add(-period / 10)))
		periods = append(periods, due.Add(-period))
	}
	time.Sleep(period / 2)
	for _, due := range periods {
		switch h := read(t, log, due); {
		case h.ended == 0:
			count.missed++
			t.Logf("missed %v: %+v", due, h)
		case len(h.pids) == 1+deaths[due]:
		case len(h.pids) <= 1+deaths[due]+h.lost:
			count.twiceAfterLoss++
		default:
			count.twice++
			t.Logf("twice %v: %+v", due, h)
		}
	}
	require.NotEmpty(t, waits)
	slices.Sort(waits)
	t.Logf("%d periods: %+v; from a death to the next run (TTL %v): median %v, largest %v", len(periods), count, periodTTL,
		waits[len(waits)/2], waits[len(waits)-1])
	require.Zero(t, count.missed+count.twice)
}
