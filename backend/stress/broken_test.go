package stress

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
)

// TestBrokenLocksAreFound has workers use locks in memory that are broken in different ways, and one
// that is right.
func TestBrokenLocksAreFound(t *testing.T) {
	for _, test := range []struct {
		name     string
		stores   int // of the workers, in turn
		fault    func(*journal, *memory.Locker)
		overlaps bool
		losses   bool
		disorder bool
	}{
		{"right", 1, func(j *journal, l *memory.Locker) { j.Wipe(l.Wipe) }, false, false, false},
		{"data are lost", 1, func(_ *journal, l *memory.Locker) { l.Wipe() }, true, true, false},
		{"two stores", 2, func(*journal, *memory.Locker) {}, true, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				stores := []*memory.Locker{memory.New(), memory.New()}
				stores[1].SetClock(-time.Hour)
				j := newJournal()
				stop, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				g := &workerGroup{keys: []string{"k"}, note: func(e event) { j.note("", e) }, stop: stop, limit: t.Context()}
				for i := range 4 {
					c := dlock.New(stores[i%test.stores])
					defer c.Close()
					g.wg.Go(g.worker("memory", 0, i, c).work)
				}
				for stop.Err() == nil {
					sleep(stop, 20*time.Millisecond)
					test.fault(j, stores[0])
				}
				g.close()
				h, all := j.judged()
				require.Equal(t, test.overlaps, len(h.Overlaps()) > 0, "%v", h.Overlaps())
				require.Equal(t, test.losses, len(h.Losses()) > 0, "%v", h.Losses())
				require.Equal(t, test.disorder, len(h.Disorders(1)) > 0, "%v", h.Disorders(1))
				require.Equal(t, test.overlaps, len(all) > 0, "%v", all)
			})
		})
	}
}
