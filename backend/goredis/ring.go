package goredis

import (
	"context"
	"fmt"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// errRing says why a ring is refused. Each client of a ring decides by itself when a server is
// down and which server has its keys then. Two clients that decide differently could hold the
// same lock.
var errRing = &dlock.NoEffectError{
	Err: fmt.Errorf("%w client: a ring, whose clients need not agree on which server has a key", dlock.ErrInvalid),
}

// A ringConn takes the place of a ring. All its methods fail.
type ringConn struct{}

func (ringConn) Eval(context.Context, rediscore.Call) (any, error) { return nil, errRing }

func (ringConn) EvalAll(_ context.Context, _ []rediscore.Call, results []rediscore.Result) {
	for i := range results {
		results[i].Err = errRing
	}
}

func (c ringConn) EvalReplicated(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, _ rediscore.Replication) {
	c.EvalAll(ctx, calls, results)
}

func (ringConn) Listen(context.Context, string, bool, func(rediscore.Event)) error { return errRing }

func (ringConn) Cluster() bool { return false }
