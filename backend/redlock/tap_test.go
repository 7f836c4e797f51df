package redlock_test

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
)

// A tap is on the way to a node. It may make, delay, lose, repeat or refuse each request.
type tap func(request) error

// A request is one to a node.
type request struct {
	ctx    context.Context
	method string // of Voter, or Inspect
	token  string // "" for Inspect
	make   func(context.Context) error
}

// A tapped node is reached through a tap.
type tapped struct {
	*memory.Locker
	tap
}

func (n tapped) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (b quorum.Ballot, err error) {
	err = n.tap(request{ctx, "Vote", token, func(ctx context.Context) (err error) { b, err = n.Locker.Vote(ctx, key, token, ttl, floor); return err }})
	return b, err
}

func (n tapped) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (b quorum.Ballot, err error) {
	err = n.tap(request{ctx, "AcquireVote", token, func(ctx context.Context) (err error) {
		b, err = n.Locker.AcquireVote(ctx, key, token, ttl, floor, place)
		return err
	}})
	return b, err
}

func (n tapped) Confirm(ctx context.Context, batch []quorum.Confirmation) (b []quorum.Ballot, err error) {
	err = n.tap(request{ctx, "Confirm", batch[0].Token, func(ctx context.Context) (err error) { b, err = n.Locker.Confirm(ctx, batch); return err }})
	return b, err
}

func (n tapped) Pass(ctx context.Context, key, token, to string, floor int64) (held bool, err error) {
	err = n.tap(request{ctx, "Pass", token, func(ctx context.Context) (err error) {
		held, err = n.Locker.Pass(ctx, key, token, to, floor)
		return err
	}})
	return held, err
}

func (n tapped) Inspect(ctx context.Context, key string) (hold dlock.Hold, err error) {
	err = n.tap(request{ctx, "Inspect", "", func(ctx context.Context) (err error) { hold, err = n.Locker.Inspect(ctx, key); return err }})
	return hold, err
}

// tapped are the nodes that are all reached through taps.
func (s stores) tapped(of func(node int) tap) []dlock.Locker {
	nodes := s.nodes()
	for i := range nodes {
		nodes[i] = tapped{s[i], of(i)}
	}
	return nodes
}

// on is a node where requests of one method meet something.
func on(s *memory.Locker, method string, meet tap) tapped {
	return tapped{s, func(r request) error {
		if r.method == method {
			return meet(r)
		}
		return r.make(r.ctx)
	}}
}

// firstOn is on for the first of these requests.
func firstOn(s *memory.Locker, method string, meet tap) tapped {
	var met atomic.Bool
	return on(s, method, func(r request) error {
		if met.Swap(true) {
			return r.make(r.ctx)
		}
		return meet(r)
	})
}

// loses makes a request, and loses the answer.
func loses(r request) error {
	_ = r.make(r.ctx)
	return errReset
}

// lasts is how long a request takes.
func lasts(d time.Duration) tap {
	return func(r request) error {
		time.Sleep(d)
		return r.make(r.ctx)
	}
}

// hangs is a request that never comes.
func hangs(r request) error {
	<-r.ctx.Done()
	return r.ctx.Err()
}

// remote is a node to which messages take a while, each way.
func remote(s *memory.Locker, pause func() time.Duration) tapped {
	return tapped{s, func(r request) error {
		time.Sleep(pause())
		defer func() { time.Sleep(pause()) }()
		return r.make(r.ctx)
	}}
}

// farFrom is a node whose votes take longer for one token than for others.
func farFrom(s *memory.Locker, token string) tapped {
	return on(s, "Vote", func(r request) error {
		if r.token == token {
			time.Sleep(time.Millisecond)
		}
		return r.make(r.ctx)
	})
}

// cable is a node until its cable is cut. What waits there then ends.
func cable(s *memory.Locker, whole context.Context) tapped {
	return tapped{s, func(r request) error {
		if whole.Err() != nil {
			return errDial
		}
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		defer context.AfterFunc(whole, cancel)()
		err := r.make(ctx)
		if whole.Err() != nil {
			return errDial
		}
		return err
	}}
}

// lossy is a node that grants a vote, loses the answer and is away then.
func lossy(s *memory.Locker) tapped {
	var voted atomic.Bool
	return on(s, "Vote", func(r request) error {
		if voted.Swap(true) {
			return errDial
		}
		return loses(r)
	})
}

// counted counts the requests of one method.
func counted(n *atomic.Int64, method string) func(int) tap {
	return func(int) tap {
		return func(r request) error {
			if r.method == method {
				n.Add(1)
			}
			return r.make(r.ctx)
		}
	}
}
