package history

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestCertainHolds(t *testing.T) {
	hold := func(key string, from, to time.Duration, fence int64) *Hold {
		return &Hold{Key: key, Token: fmt.Sprint("token", fence), Start: from, End: to, Fence: fence}
	}
	for _, c := range []struct {
		name  string
		holds []*Hold
		want  string
	}{
		{"good", []*Hold{hold("k", 0, 5, 8), hold("k", 5, 9, 16)}, ""},
		{"without fences", []*Hold{hold("k", 0, 5, 0), hold("k", 5, 9, 0)}, ""},
		{"out of order", []*Hold{hold("k", 5, 9, 16), hold("k", 0, 5, 8)}, ""},
		{"two keys", []*Hold{hold("k", 0, 5, 8), hold("l", 0, 5, 8)}, ""},
		{"overlap", []*Hold{hold("k", 0, 6_000_000, 8), hold("l", 5, 6, 8), hold("k", 5_000_000, 9_000_000, 16)}, "overlap by 1.000ms"},
		{"fence falls", []*Hold{hold("k", 0, 5, 16), hold("k", 5, 9, 8)}, "higher by at least 8"},
		{"fence repeats", []*Hold{hold("k", 0, 5, 8), hold("k", 5, 9, 8)}, "higher by at least 8"},
		{"fence vanishes", []*Hold{hold("k", 0, 5, 8), hold("k", 5, 9, 0)}, "higher by at least 8"},
		{"overlap with one that is not the last", []*Hold{hold("k", 0, 9, 8), hold("k", 0, 0, 16), hold("k", 8, 9, 24)}, "overlap"},
	} {
		v, err := testModel.Check(&History{Holds: c.holds})
		assert.NoError(t, err, c.name)
		if c.want == "" {
			assert.Nil(t, v, c.name)
		} else if assert.NotNil(t, v, c.name) {
			assert.Contains(t, v.String(), c.want, c.name)
			assert.Len(t, v.Holds, 2, c.name)
		}
	}
}

// What was certain before a loss of data is over, even if the answer came later.
func TestWipeEndsCertainty(t *testing.T) {
	wipes := []*Operation{{Method: Wipe, Called: 10, Returned: 20}}
	for _, c := range []struct{ asked, start, end, want time.Duration }{
		{0, 1, 5, 5}, {2, 3, 15, 10}, {4, 12, 30, 10}, {15, 25, 30, 10}, {21, 22, 30, 30},
	} {
		h := &Hold{Asked: c.asked, Start: c.start, End: c.end}
		h.cutAtWipes(wipes)
		assert.Equal(t, c.want, h.End, "%v", c)
	}
}

// A loss of data explains that a lease is lost, if it may have come after the grant, and before anybody saw it.
func TestLosses(t *testing.T) {
	wipes := []*Operation{{Method: Wipe, Called: 10, Returned: 20}}
	for _, c := range []struct {
		asked, lost time.Duration
		explained   bool
	}{{1, 0, true}, {1, 9, false}, {1, 10, true}, {20, 30, true}, {21, 30, false}} {
		h := &History{Operations: wipes, Holds: []*Hold{{Key: "k", Asked: c.asked, Lost: c.lost}}}
		v, err := testModel.Check(h)
		assert.NoError(t, err)
		assert.Equal(t, c.explained, v == nil, "%v", c)
	}
}

// Fences rise even if no hold was certain, as when all data is lost, but only from a grant to those
// that were asked for later.
func TestFencesOfUncertainHolds(t *testing.T) {
	first := &Hold{Key: "k", Start: 5, Fence: 16}
	for asked, want := range map[time.Duration]int{5: 0, 6: 1} {
		h := &History{Holds: []*Hold{{Key: "k", Asked: asked, Start: 9, Fence: 8}, first, {Key: "l", Asked: 6, Start: 9, Fence: 8}}}
		assert.Empty(t, h.Overlaps())
		assert.Len(t, h.Disorders(1), want, "asked for at %v", asked)
	}
}
