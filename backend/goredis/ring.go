package goredis

import (
	"context"
	"fmt"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// errRing is why a ring is refused. Each client of a ring decides by itself when a
// server is down and its keys are to be found on another, so two that see the network
// differently would hold the same lock.
var errRing = &dlock.NoEffectError{
	Err: fmt.Errorf("%w client: a ring, whose clients need not agree on which server has a key", dlock.ErrInvalid),
}

// A ringConn stands for a ring. It fails always.
type ringConn struct{}

func (ringConn) Eval(context.Context, rediscore.Call) (any, error) { return nil, errRing }

func (ringConn) EvalAll(_ context.Context, _ []rediscore.Call, results []rediscore.Result) {
	for i := range results {
		results[i].Err = errRing
	}
}

func (ringConn) Listen(context.Context, string, bool, func(rediscore.Event)) error { return errRing }

func (ringConn) Cluster() bool { return false }
