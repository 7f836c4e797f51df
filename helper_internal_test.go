package dlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A fake is a Locker that grants everything, but releases as the test says.
type fake struct {
	release func() (bool, error) // nil: it succeeds
}

func (fake) TryAcquire(context.Context, string, string, time.Duration) (Attempt, error) {
	return Attempt{Acquired: true, Fence: 8}, nil
}

func (fake) Renew(context.Context, string, string, time.Duration) (bool, error) { return true, nil }

func (f fake) Release(context.Context, string, string) (bool, error) {
	if f.release == nil {
		return true, nil
	}
	return f.release()
}

func take(t *testing.T, c *Client, key string) *Lease {
	t.Helper()
	l, err := c.Acquire(t.Context(), key)
	require.NoError(t, err)
	return l
}
