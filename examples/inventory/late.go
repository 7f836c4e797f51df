package main

import (
	"context"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/fence"
)

// shortTTL is that of the holder that comes late.
const shortTTL = 250 * time.Millisecond

// A lateness is what became of a holder that stopped for longer than its lease
// lasted, as in a long garbage collection or on a suspended machine, and then
// went on as if nothing had happened.
type lateness struct {
	stale, fresh int64 // the fences of that holder and of the next
	lost         error // what the lease of the first said, had it asked
	refusal      error // what the shop said to its write; nil if it was taken
}

// comeLate lets two holders sell the last item. The second is granted the lock
// when the lease of the first has run out, between the first one's read and its
// write.
func comeLate(ctx context.Context, store *store) (*lateness, error) {
	shop := newShop(1)
	stopped := store.client(0).With(dlock.WithTTL(shortTTL), dlock.WithRenewal(false))
	first, err := stopped.Acquire(ctx, store.key)
	if err != nil {
		return nil, err
	}
	defer first.Release()
	stale, err := fence.Of(first)
	if err != nil {
		return nil, err
	}
	left, err := shop.read(stale)
	if err != nil {
		return nil, err
	}
	second, err := store.client(1).Acquire(ctx, store.key)
	if err != nil {
		return nil, err
	}
	defer second.Release()
	fresh, err := fence.Of(second)
	if err != nil {
		return nil, err
	}
	if _, err := shop.read(fresh); err != nil {
		return nil, err
	}
	late := &lateness{stale: stale.Fence, fresh: fresh.Fence, lost: first.Err()}
	late.refusal = shop.write(stale, left-1)
	return late, shop.write(fresh, left-1)
}
