package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/fence"
)

// A sale is the selling of a whole stock by all workers at once.
type sale struct {
	name    string
	stock   int
	shop    *shop
	workers []*worker
}

// A guard calls sell when the caller may sell, with its Stamp, and returns the
// error of sell or why it was not called. The context of sell ends when it must
// stop.
type guard func(ctx context.Context, sell func(ctx context.Context, p fence.Stamp) error) error

// unguarded lets anybody sell at any time.
func unguarded(int) guard {
	return func(ctx context.Context, sell func(ctx context.Context, p fence.Stamp) error) error {
		return sell(ctx, fence.Stamp{})
	}
}

// newSale returns a sale whose workers, counted from 0, obey the guards that
// guardOf makes.
func newSale(name string, cfg config, guardOf func(worker int) guard) *sale {
	s := &sale{name: name, stock: cfg.stock, shop: newShop(cfg.stock)}
	for i := range cfg.workers {
		s.workers = append(s.workers, &worker{label: cfg.label(i), shop: s.shop, guard: guardOf(i), hold: cfg.hold})
	}
	return s
}

// run returns when everything is sold, or with the first error of a worker, or
// the cause of ctx.
func (s *sale) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, w := range s.workers {
		wg.Go(func() {
			if err := w.sellOut(ctx); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// A worker sells one item after another. Its counts belong to the goroutine
// that calls sellOut.
type worker struct {
	label string
	shop  *shop
	guard guard
	hold  time.Duration
	sold  int
	waits []time.Duration // how long the guard took, each time
}

// sellOut sells until nothing is left. A worker that loses its lease in the
// middle of a sale starts over: the shop sees to it that it does no harm.
func (w *worker) sellOut(ctx context.Context) error {
	for {
		err := w.sellOne(ctx)
		switch {
		case errors.Is(err, errSoldOut):
			return nil
		case err != nil && !errors.Is(err, dlock.ErrLost):
			return err
		}
	}
}

// sellOne reads the stock, takes its time, and writes what is left: right as
// long as nobody else does so at the same time.
func (w *worker) sellOne(ctx context.Context) error {
	asked := time.Now()
	return w.guard(ctx, func(ctx context.Context, p fence.Stamp) error {
		w.waits = append(w.waits, time.Since(asked))
		left, err := w.shop.read(p)
		if err != nil {
			return err
		}
		if left <= 0 {
			return errSoldOut
		}
		if err := sleep(ctx, w.hold); err != nil {
			return err
		}
		if err := w.shop.write(p, left-1); err != nil {
			return err
		}
		w.sold++
		return nil
	})
}

// sleep returns after d, or with the cause of ctx when that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
