package rediscore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/sim"
)

// fences are those of grants on the server of a bench, with a pause after each.
func (b *bench) fences(n int, pause time.Duration) []int64 {
	b.Helper()
	all := make([]int64, n)
	for i := range all {
		all[i] = b.hold("t")
		b.release("t")
		time.Sleep(pause)
	}
	return all
}

// A replica is promoted without the last writes, and its former master grants on for almost 10 s. No fence of the
// new master is as small as one of the former.
func TestNewMasterLeads(t *testing.T) {
	for name, c := range map[string]struct {
		before time.Duration // that the slot was not used
		link   sim.Link
		unused bool // the slot before that
	}{
		"within a window":       {link: sim.Link{Delay: time.Millisecond}},
		"nothing came":          {link: sim.Link{Cut: true}},
		"after a pause":         {before: 11 * time.Second},
		"after two days":        {before: 48 * time.Hour},
		"a slot that is unused": {unused: true},
	} {
		atBench(t, "", "k", func(b *bench) {
			replica := b.server.NewReplica()
			time.Sleep(11 * time.Second) // the copy is older than what a master trusts
			replica.SetLink(c.link)
			if !c.unused {
				b.fences(100, 100*time.Microsecond)
			}
			time.Sleep(c.before)
			replica.Promote()
			next := b.at(replica, b.prefix)
			var last, first int64
			for promoted := time.Now(); time.Since(promoted) < 9*time.Second; {
				for _, f := range next.fences(20, 100*time.Microsecond) {
					require.Greater(b, f, first, name)
					first = f
				}
				f := b.fences(20, 100*time.Microsecond)
				require.Greater(b, f[0], last, name)
				last = f[len(f)-1]
				require.Less(b, last, first-20*8, name)
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(2 * time.Second)
			require.InDelta(b, next.now(), next.hold("t"), 20_000, "%s: the clock has caught up", name)
		})
	}
}

// What a new master knows of itself outlasts pauses. So it leads once, and again after the next promotion. A
// master that was never promoted does not lead.
func TestMasterLeadsOnce(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		lead := func(b *bench) int64 { return b.fences(1, 0)[0] - b.now() }
		require.Zero(b, lead(b))
		first := b.server.NewReplica()
		time.Sleep(time.Minute)
		require.Zero(b, lead(b))
		require.EqualValues(b, 2*dayInMS, b.number("PTTL", b.keys.counter))
		first.Promote()
		next := first.NewReplica()
		b = b.at(first, b.prefix)
		require.EqualValues(b, dayInMS, b.number("PTTL", b.keys.counter), "the mark is not replicated")
		require.EqualValues(b, 10*second, lead(b))
		time.Sleep(4 * time.Second)
		require.EqualValues(b, 6*second+8, lead(b))
		for range 3 {
			time.Sleep(time.Hour)
			require.Zero(b, lead(b))
		}
		time.Sleep(time.Minute)
		next.Promote()
		require.EqualValues(b, 10*second, lead(b.at(next, b.prefix)))
		require.Zero(b, lead(b), "its former master goes on")
	})
	atBench(t, "", "k", func(b *bench) {
		replica := b.server.NewReplica()
		b.fences(1, time.Minute)
		replica.Promote()
		b = b.at(replica, b.prefix)
		b.forbid("INFO")
		require.Equal(b, b.now(), b.hold("t"), "without the right to INFO")
	})
}
