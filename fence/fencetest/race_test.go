//go:build unix

package fencetest_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/fence"
)

// Many leases write two accounts, with one lock each, in one transaction or in several. Several
// workers share a lease, and some roll back. Each round begins with tables that have no rows for the
// keys. Nobody may wait for ever, and each account must show the fences in order.
func TestRace(t *testing.T) {
	on(t, func(t *testing.T, s *store) {
		s.do(t, "INSERT INTO account VALUES (0, 0, 0), (1, 0, 0)")
		for _, level := range s.levels() {
			r := &race{store: s, options: &sql.TxOptions{Isolation: level}}
			for end := time.Now().Add(cmp.Or(lasts, 150*time.Millisecond)); time.Now().Before(end) && !t.Failed(); {
				r.round(t)
			}
		}
	})
}

type race struct {
	*store
	options *sql.TxOptions
	fence   atomic.Int64
	changes [2]atomic.Int64 // of each account
}

func (r *race) round(t *testing.T) {
	r.do(t, "DELETE FROM dlock_fence", "UPDATE account SET fence = 0, changes = 0")
	r.fence.Store(1)
	r.changes = [2]atomic.Int64{}
	var all sync.WaitGroup
	for range 24 {
		all.Go(func() {
			for range 3 {
				assert.NoError(t, r.transfer(t.Context()), r.options.Isolation)
			}
		})
	}
	all.Wait()
	for i := range r.changes {
		require.Positive(t, r.changes[i].Load())
		require.Equal(t, r.changes[i].Load(), r.number(t, fmt.Sprintf("SELECT changes FROM account WHERE id = %d", i)), "changes of account %d", i)
	}
}

// transfer makes one transaction, of a lease that is new or rather new.
func (r *race) transfer(ctx context.Context) error {
	n := r.fence.Load() - rand.Int64N(2)
	if rand.IntN(4) == 0 || n == 0 {
		n = r.fence.Add(1)
	}
	accounts := [][]int{{0}, {1}, {0, 1}, {0, 1}}[rand.IntN(4)]
	var stamps []fence.Stamp
	for _, i := range accounts {
		stamps = append(stamps, stamp(fmt.Sprint("account:", i), n, int(n)))
	}
	rand.Shuffle(len(stamps), func(i, j int) { stamps[i], stamps[j] = stamps[j], stamps[i] })
	err := r.change(ctx, n, accounts, stamps)
	var state interface{ SQLState() string }
	switch {
	case err == nil:
		for _, i := range accounts {
			r.changes[i].Add(1)
		}
	case errors.Is(err, fence.ErrStale), errors.Is(err, errRolledBack), errors.As(err, &state) && state.SQLState() == "40001":
		return nil
	}
	return err
}

var errRolledBack = errors.New("rolled back")

func (r *race) change(ctx context.Context, n int64, accounts []int, stamps []fence.Stamp) error {
	tx, err := r.table.Begin(ctx, r.DB, r.options, stamps...)
	if errors.Is(err, fence.ErrStale) {
		return err
	}
	if err != nil {
		return fmt.Errorf("Begin: %v", err) // it begins again by itself after a conflict
	}
	defer tx.Rollback()
	if rand.IntN(5) == 0 {
		return errRolledBack
	}
	for _, i := range accounts {
		var last int64
		if err := tx.QueryRowContext(ctx, fmt.Sprintf("SELECT fence FROM account WHERE id = %d", i)).Scan(&last); err != nil {
			return err
		}
		if last > n {
			return fmt.Errorf("the transaction of fence %d sees what fence %d has written", n, last)
		}
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE account SET fence = %d, changes = changes + 1 WHERE id = %d", n, i)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// The first writer of a key ends while those of another lease with an equal fence wait for it. (If it
// rolls back, MySQL reports a deadlock to one of them, and Begin begins again.)
func TestFirstWriter(t *testing.T) {
	on(t, func(t *testing.T, s *store) {
		for i, c := range []struct {
			end  func(*sql.Tx) error
			want error
		}{{(*sql.Tx).Rollback, nil}, {(*sql.Tx).Commit, fence.ErrStale}} {
			key := fmt.Sprint(i)
			first, err := s.table.Begin(t.Context(), s.DB, nil, stamp(key, 8, 1))
			require.NoError(t, err)
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() { assert.ErrorIs(t, s.write(t.Context(), stamp(key, 8, 2)), c.want) })
			}
			time.Sleep(100 * time.Millisecond) // so that they wait; if not, the test shows less
			require.NoError(t, c.end(first))
			all.Wait()
		}
	})
}
