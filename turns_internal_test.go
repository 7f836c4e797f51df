package dlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A lease is not passed on once its first renewal is due, even if the timer is late, nor if
// none is planned, nor by either clock with too little of its first TTL.
func TestYoungLease(t *testing.T) {
	now := time.Now()
	young := func(renewAt time.Time, rest, wallRest time.Duration) bool {
		l := &Lease{options: &options{terms: terms{ttl: DefaultTTL, autoRenew: true}}, renewAt: renewAt}
		l.deadline, l.wall = now.Add(rest), now.Add(wallRest).Round(0)
		return l.youngLocked(now)
	}
	require.True(t, young(now.Add(1), waitTTL/2, waitTTL/2))
	require.False(t, young(now, waitTTL/2, waitTTL/2))
	require.False(t, young(time.Time{}, waitTTL/2, waitTTL/2))
	require.False(t, young(now.Add(1), waitTTL/2-1, waitTTL/2))
	require.False(t, young(now.Add(1), waitTTL/2, waitTTL/2-1))
}
