package rueidis

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// A closing finds out whether a client is closed. rueidis says ErrClosing of any connection
// that was closed, also if the client lives. (One that once failed to connect before it was
// closed does not say it, but connects again.)
type closing struct {
	client rueidis.Client
	found  atomic.Pointer[error] // of the first call that found the client closed
}

// before returns the error of a call of a client that is known to be closed: nothing is
// sent. For any other client it returns nil.
func (c *closing) before() error {
	if err := c.found.Load(); err != nil {
		return &dlock.NoEffectError{Err: *err}
	}
	return nil
}

// after returns the error of a call that has failed. That the client is closed, it says
// without a mark: rueidis says the same of commands that were on their way.
func (c *closing) after(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rueidis.ErrNoSlot):
		return &dlock.NoEffectError{Err: err}
	case !saysClosed(err), c.found.Load() == nil && !rediscore.IsClosed(ctx, saysClosed, c.ping):
		return err
	}
	err = rediscore.ClientClosed(err)
	c.found.CompareAndSwap(nil, &err)
	return err
}

// afterAll is after for all results, but looks only once whether the client is closed.
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

// ping is repeated by a client that lives, over another connection.
func (c *closing) ping(ctx context.Context) error {
	return c.client.Do(ctx, c.client.B().Arbitrary("PING").ReadOnly()).Error()
}
