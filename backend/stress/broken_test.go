package stress

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// TestBrokenLocksAreFound has workers use locks in memory that are broken in different ways, and one
// that is right.
func TestBrokenLocksAreFound(t *testing.T) {
	one, other, behind := memory.New(), memory.New(), memory.New()
	behind.SetClock(-time.Hour)
	for _, test := range []struct {
		name     string
		stores   []dlock.Locker // of the workers, in turn
		fault    func(*journal)
		overlaps bool
		losses   bool
		disorder bool
	}{
		{"right", []dlock.Locker{one}, func(j *journal) { j.Wipe(one.Wipe) }, false, false, false},
		{"data are lost", []dlock.Locker{one}, func(*journal) { one.Wipe() }, true, true, false},
		{"two stores", []dlock.Locker{other, behind}, func(*journal) {}, true, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := newJournal()
			stop, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			g := &workerGroup{keys: []string{"k"}, note: func(e event) { j.note("", e) }, stop: stop, limit: t.Context()}
			for i := range 4 {
				c := dlock.New(test.stores[i%len(test.stores)])
				defer c.Close()
				g.wg.Go(g.worker("memory", 0, i, c).work)
			}
			for stop.Err() == nil {
				sleep(stop, 20*time.Millisecond)
				test.fault(j)
			}
			g.close()
			h, all := j.judged()
			require.Equal(t, test.overlaps, len(h.Overlaps()) > 0, "%v", h.Overlaps())
			require.Equal(t, test.losses, len(h.Losses()) > 0, "%v", h.Losses())
			require.Equal(t, test.disorder, len(h.Disorders(1)) > 0, "%v", h.Disorders(1))
			require.Equal(t, test.overlaps, len(all) > 0, "%v", all)
		})
	}
}
