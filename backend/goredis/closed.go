package goredis

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// unlessClosed returns err or, if the client was closed, an error that says so. In a cluster an
// err that says "closed" may be about the client of a single node that has left.
func (c conn) unlessClosed(ctx context.Context, err error) error {
	if !saysClosed(err) || !rediscore.IsClosed(ctx, saysClosed, c.ping) {
		return err
	}
	return clientClosed(err)
}

// clientClosed returns the error of a call of a closed client. It is a [dlock.NoEffectError] if
// err is.
func clientClosed(err error) error {
	var unsent *dlock.NoEffectError
	if errors.As(err, &unsent) {
		return &dlock.NoEffectError{Err: rediscore.ClientClosed(unsent.Err)}
	}
	return rediscore.ClientClosed(err)
}

func saysClosed(err error) bool { return errors.Is(err, redis.ErrClosed) }

func (c conn) ping(ctx context.Context) error {
	return c.client.Process(ctx, redis.NewCmd(ctx, "ping"))
}
