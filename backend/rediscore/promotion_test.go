package rediscore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/sim"
)

// The fences of a server that was promoted go on from the last that was replicated. Beside that they follow its clock,
// as those of its former master follow the other clock.
func TestFencesAfterAPromotion(t *testing.T) {
	for name, c := range map[string]struct {
		link  sim.Link
		clock time.Duration // of the replica, from the master's
		want  int64         // the first fence there, from the last of the former master; or from the clock if that is 0
	}{
		"replicated, the clock is right":  {want: 0},
		"replicated, the clock is behind": {clock: -time.Hour, want: 8},
		"nothing came":                    {link: sim.Link{Cut: true}},
		"nothing came, clock ahead":       {link: sim.Link{Cut: true}, clock: time.Second},
	} {
		atBench(t, "", "k", func(b *bench) {
			replica := b.server.NewReplica()
			replica.SetLink(c.link)
			replica.SetClock(c.clock)
			last := b.hold("A")
			b.release("A")
			time.Sleep(time.Millisecond)
			replica.Promote()
			next := b.at(replica, b.prefix)
			first := next.hold("B")
			if c.want > 0 {
				require.Equal(b, c.want, first-last, name)
			} else {
				require.Equal(b, next.now()+c.clock.Microseconds(), first, name)
			}
			require.Equal(b, b.now(), b.hold("C"), "%s: the former master grants on", name)
		})
	}
}
