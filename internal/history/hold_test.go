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
	wipe := &Operation{Method: Wipe, Called: 10, Returned: 20}
	hold := func(asked, start, end time.Duration) *Hold {
		return &Hold{Asked: asked, Start: start, End: end}
	}
	got := cutAtWipes([]*Hold{hold(0, 1, 5), hold(2, 3, 15), hold(4, 12, 30), hold(15, 25, 30), hold(21, 22, 30), hold(21, 22, 22)}, []*Operation{wipe})
	assert.Equal(t, []*Hold{hold(0, 1, 5), hold(2, 3, 10), hold(21, 22, 30)}, got)
}
