package reproductions

import (
	"errors"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/stretchr/testify/require"
)

// TestRedsyncExtendBelowAMillisecond: the expiry is cut to 0 ms and PEXPIRE 0 deletes
// the key. The answer is success if the server answered within the expiry.
func TestRedsyncExtendBelowAMillisecond(t *testing.T) {
	_, client := start(t)
	locks := redsync.New(redsyncgoredis.NewPool(client))
	for range 2000 {
		held := locks.NewMutex(key, redsync.WithExpiry(ttl))
		require.NoError(t, held.TryLockContext(t.Context()))
		again := locks.NewMutex(key, redsync.WithExpiry(999*time.Microsecond), redsync.WithValue(held.Value()))
		ok, err := again.ExtendContext(t.Context())
		require.Empty(t, value(t, client, key), "the key is gone, whatever the answer: %v, %v", ok, err)
		if ok {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, redsync.ErrExtendFailed)
	}
	t.Skip("this machine is too slow: no answer of the server came within a millisecond")
}

// TestRedsyncTakenOnUnlock: the error of an unlock by one who does not hold the lock any
// more says that the lock could not be taken.
func TestRedsyncTakenOnUnlock(t *testing.T) {
	_, client := start(t)
	locks := redsync.New(redsyncgoredis.NewPool(client))
	stale := locks.NewMutex(key, redsync.WithExpiry(ttl))
	require.NoError(t, stale.TryLockContext(t.Context()))
	require.NoError(t, client.Set(t.Context(), key, "another's", ttl).Err())
	ok, err := stale.UnlockContext(t.Context())
	require.False(t, ok)
	var taken *redsync.ErrTaken
	require.True(t, errors.As(err, &taken), "%v", err)
}
