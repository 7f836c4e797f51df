package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/fence"
)

var errSoldOut = errors.New("sold out")

// A shop keeps the stock, as a database would: each read and each write is atomic, but nothing keeps
// others from writing between the two. It does refuse those whose lease is over, since it remembers
// the last Stamp, of reads too. In a database, fence.Table does that.
type shop struct {
	mu         sync.Mutex
	last       fence.Stamp
	left, sold int // what the books say, and what has been given away
}

// visit calls do, unless a later holder has been here. Those who have no lock have the zero Stamp.
func (s *shop) visit(stamp fence.Stamp, do func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stamp != s.last && !s.last.Admits(stamp) {
		return fmt.Errorf("%w: %d, and this is %d", fence.ErrStale, s.last.Fence, stamp.Fence)
	}
	s.last = stamp
	do()
	return nil
}

func (s *shop) read(stamp fence.Stamp) (left int, err error) {
	err = s.visit(stamp, func() { left = s.left })
	return left, err
}

// write sells one item, after which so many are left.
func (s *shop) write(stamp fence.Stamp, left int) error {
	return s.visit(stamp, func() { s.left, s.sold = left, s.sold+1 })
}

// A sale is the selling of a whole stock by all workers at once.
type sale struct {
	name   string
	config config
	locks  *dlock.Client // nil if anybody sells at any time
	shop

	waitsMu sync.Mutex
	waits   []time.Duration // for the lock
}

func newSale(name string, cfg config, locks *dlock.Client) *sale {
	return &sale{name: name, config: cfg, locks: locks, shop: shop{left: cfg.stock}}
}

// run returns when everything is sold, with the first error of a worker, or with the cause of ctx.
// A worker that loses its lease in the middle starts over: the shop sees to it that it does no harm.
func (s *sale) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for range s.config.workers {
		all.Go(func() {
			var err error
			for err == nil || errors.Is(err, dlock.ErrLost) {
				err = s.sellOne(ctx)
			}
			if !errors.Is(err, errSoldOut) {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

func (s *sale) sellOne(ctx context.Context) error {
	if s.locks == nil {
		return s.sell(ctx, fence.Stamp{})
	}
	asked := time.Now()
	return s.locks.Do(ctx, key, func(ctx context.Context, lease *dlock.Lease) error {
		s.waitsMu.Lock()
		s.waits = append(s.waits, time.Since(asked))
		s.waitsMu.Unlock()
		stamp, err := fence.Of(lease)
		if err != nil {
			return err
		}
		return s.sell(ctx, stamp)
	})
}

// sell reads the stock, takes its time, and writes what is left. That is right as long as nobody
// else does so at the same time.
func (s *sale) sell(ctx context.Context, stamp fence.Stamp) error {
	left, err := s.read(stamp)
	switch {
	case err != nil:
		return err
	case left <= 0:
		return errSoldOut
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(s.config.hold):
		return s.write(stamp, left-1)
	}
}

// report writes what came of both sales.
func report(out io.Writer, without, with *sale) error {
	slices.Sort(with.waits)
	stock := with.config.stock
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, `
	without a lock	with a lock	waited p50	waited p99	
sold	%d	%d	%v	%v	
stock	%d	%d	
oversold by	%d	%d	
`, without.sold, with.sold, percentile(with.waits, 50), percentile(with.waits, 99), stock, stock, without.sold-stock, with.sold-stock)
	return table.Flush()
}

// percentile returns the smallest of the sorted waits that p percent of them do not exceed.
func percentile(waits []time.Duration, p int) time.Duration {
	if len(waits) == 0 {
		return 0
	}
	return waits[(len(waits)*p+99)/100-1].Round(100 * time.Microsecond)
}

// comeLate lets two holders sell the last item. The first stops for longer than its lease lasts, as in
// a long garbage collection or on a suspended machine, and then goes on as if nothing had happened.
func comeLate(ctx context.Context, locks *dlock.Client, out io.Writer) error {
	last := &shop{left: 1}
	take := func(client *dlock.Client) (*dlock.Lease, fence.Stamp, error) {
		lease, err := client.Acquire(ctx, key)
		if err != nil {
			return nil, fence.Stamp{}, err
		}
		stamp, err := fence.Of(lease)
		if err == nil {
			_, err = last.read(stamp)
		}
		return lease, stamp, err
	}
	const ttl = 250 * time.Millisecond
	first, stale, err := take(locks.With(dlock.WithTTL(ttl), dlock.WithRenewal(false)))
	if err != nil {
		return err
	}
	second, fresh, err := take(locks)
	if err != nil {
		return err
	}
	defer second.Release()
	answer, refusal := "took it", last.write(stale, 0)
	if refusal != nil {
		answer = "refused it: " + refusal.Error()
	}
	fmt.Fprintf(out, `
A holder stopped for longer than its lease of %v, and then went on to write.
first    fence %d: read the stock, stopped
second   fence %d: granted when that lease had run out, read the stock
first    %v
         wrote anyway
shop     %s
second   wrote
`, ttl, stale.Fence, fresh.Fence, first.Err(), answer)
	if !errors.Is(refusal, fence.ErrStale) {
		return errors.New("the write of a holder that had lost its lease was not refused")
	}
	return last.write(fresh, 0)
}
