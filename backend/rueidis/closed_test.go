package rueidis

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// ErrClosing of one connection is not that of the client; and what was on its way when the
// client was closed may have had an effect.
func TestErrClosing(t *testing.T) {
	server := redistest.Start(t)
	option := rueidis.ClientOption{InitAddress: []string{server.Addr()}}
	option.Dialer.KeepAlive = time.Hour // without pings of its own
	client := newClient(t, option)
	c := newConn(client).closing
	require.Equal(t, rueidis.ErrClosing, c.after(t.Context(), rueidis.ErrClosing))
	results := []rediscore.Result{{Reply: int64(1)}, {Err: rueidis.ErrClosing}, {Err: rueidis.ErrClosing}}
	calls := server.CommandCount(t)
	c.afterAll(t.Context(), results)
	calls["ping"]++
	calls["info"]++ // of the first CommandCount
	require.Equal(t, calls, server.CommandCount(t))
	require.Equal(t, []rediscore.Result{{Reply: int64(1)}, {Err: rueidis.ErrClosing}, {Err: rueidis.ErrClosing}}, results)
	require.NoError(t, c.before())

	client.Close()
	c.afterAll(t.Context(), results)
	require.NoError(t, results[0].Err)
	var unsent *dlock.NoEffectError
	for _, r := range results[1:] {
		require.ErrorIs(t, r.Err, dlock.ErrClosed)
		require.ErrorIs(t, r.Err, rueidis.ErrClosing)
		require.False(t, errors.As(r.Err, &unsent))
	}
	require.ErrorIs(t, c.before(), dlock.ErrClosed)
	require.ErrorAs(t, c.before(), &unsent)
}
