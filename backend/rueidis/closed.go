package rueidis

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// A closing finds out whether a client was closed. rueidis returns ErrClosing for any closed
// connection, also if the client is open. (A client that had failed to connect before it was
// closed does not return it, but connects again.)
type closing struct {
	client rueidis.Client
	found  atomic.Pointer[error] // the error of the first call that found the client closed
}

// before returns the error of a call that is not sent because the client is known to be closed.
// Otherwise it returns nil.
func (c *closing) before() error {
	if err := c.found.Load(); err != nil {
		return &dlock.NoEffectError{Err: *err}
	}
	return nil
}

// after returns the error to return for a call that has failed with err. If the client was
// closed, that is not a [dlock.NoEffectError], because rueidis also returns ErrClosing for
// commands in flight.
func (c *closing) after(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rueidis.ErrNoSlot):
		// A replica may be promoted.
		return &dlock.NoEffectError{Err: fmt.Errorf("%w (its master is away, or the cluster names no address of it)", err), Temporary: true}
	case !saysClosed(err), c.found.Load() == nil && !rediscore.IsClosed(ctx, saysClosed, c.ping):
		return err
	}
	closed := rediscore.ClientClosed(err)
	c.found.CompareAndSwap(nil, &closed)
	return closed
}

// afterAll is after for all results. It finds out only once whether the client is open.
func (c *closing) afterAll(ctx context.Context, results []rediscore.Result) {
	lives := false
	for i, r := range results {
		if saysClosed(r.Err) && lives {
			continue
		}
		results[i].Err = c.after(ctx, r.Err)
		lives = lives || saysClosed(r.Err) && !errors.Is(results[i].Err, dlock.ErrClosed)
	}
}

func saysClosed(err error) bool { return errors.Is(err, rueidis.ErrClosing) }

// ping is a command that an open client retries over another connection.
func (c *closing) ping(ctx context.Context) error {
	return c.client.Do(ctx, c.client.B().Arbitrary("PING").ReadOnly()).Error()
}
