//go:build unix

package fencetest_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/fence"
)

func TestRule(t *testing.T) {
	on(t, testRule)
	t.Run(otherMariaDB.name, func(t *testing.T) { testRule(t, otherMariaDB.fresh(t)) })
}

func testRule(t *testing.T, s *store) {
	ctx := t.Context()
	mine, other := stamp("k", 8, 1), stamp("k", 8, 2) // two masters have granted both
	require.NoError(t, s.write(ctx, mine))
	require.ErrorIs(t, s.write(ctx, other), fence.ErrStale, "an equal fence of another lease")
	require.NoError(t, s.write(ctx, mine), "the same lease again")
	require.ErrorIs(t, s.write(ctx, stamp("k", 7, 3)), fence.ErrStale, "a smaller fence")

	tx, err := s.table.Begin(ctx, s.DB, nil, stamp("k", 16, 4))
	require.NoError(t, err)
	require.NoError(t, tx.Rollback())
	require.NoError(t, s.write(ctx, mine), "what was rolled back does not count")
	require.NoError(t, s.write(ctx, stamp("k", 16, 5)), "a larger fence")
	require.ErrorIs(t, s.write(ctx, mine), fence.ErrStale)

	require.ErrorIs(t, s.write(ctx, stamp("a", 9, 6), mine), fence.ErrStale, "one of two is stale")
	require.NoError(t, s.write(ctx, stamp("a", 8, 7)), "nothing is kept of a check that has failed")
	for i, key := range []string{"K", "k ", " k", "k\x00", "\xff\xfe", "ключ"} {
		require.NoError(t, s.write(ctx, stamp(key, 1, i)), "%q is a key of its own", key)
	}
	require.EqualValues(t, 5+6, s.number(t, "SELECT count(*) FROM writes"))
}

// A query of a batch follows the same rule.
func TestQuery(t *testing.T) {
	on(t, func(t *testing.T, s *store) {
		accepted := func(st fence.Stamp) (yes bool) {
			query, args, err := s.table.Query(st)
			require.NoError(t, err)
			err = s.QueryRow(query, args...).Scan(&yes)
			require.Equal(t, yes, err == nil)
			if !yes {
				require.ErrorIs(t, err, sql.ErrNoRows)
			}
			return yes
		}
		if s.driver == "mysql" {
			_, _, err := s.table.Query(stamp("k", 8, 1))
			require.ErrorContains(t, err, "unsupported")
			return
		}
		require.True(t, accepted(stamp("k", 8, 1)))
		require.False(t, accepted(stamp("k", 8, 2)))
		require.True(t, accepted(stamp("k", 8, 1)))
		require.True(t, accepted(stamp("k", 9, 2)))
		require.False(t, accepted(stamp("k", 8, 1)))
	})
}

// A transaction of the old holder commits while the check of the new one waits for it. The new one
// must see what it has written.
func TestNewHolderSeesTheOldOnesRows(t *testing.T) {
	on(t, func(t *testing.T, s *store) {
		for i, level := range s.levels() {
			ctx, options := t.Context(), &sql.TxOptions{Isolation: level}
			old, next := stamp("k", int64(2*i+8), 1), stamp("k", int64(2*i+9), 2)
			require.NoError(t, s.write(ctx, old)) // so that the next one only shares the row
			tx, err := s.table.Begin(ctx, s.DB, options, old)
			require.NoError(t, err)
			if s.driver == "pgx" { // transactions of one lease run side by side
				beside, err := s.table.Begin(ctx, s.DB, options, old)
				require.NoError(t, err)
				require.NoError(t, beside.Rollback())
			}
			seen := make(chan int64, 1)
			go func() {
				defer close(seen)
				tx, err := s.table.Begin(ctx, s.DB, options, next)
				if err != nil {
					t.Errorf("%v: Begin(%v) = %v", level, next, err)
					return
				}
				defer tx.Rollback()
				var n int64
				if err := tx.QueryRow("SELECT count(*) FROM writes").Scan(&n); err != nil {
					t.Error(err)
				}
				if err := tx.Commit(); err != nil {
					t.Error(err)
				}
				seen <- n
			}()
			select {
			case <-seen:
				t.Errorf("%v: the check of the new holder has not waited for the old one's transaction", level)
			case <-time.After(100 * time.Millisecond):
			}
			require.NoError(t, insert(ctx, tx, old.Fence))
			require.EqualValues(t, 2*i+2, <-seen, "%v: the rows that the new holder sees", level)
			require.ErrorIs(t, s.write(ctx, old), fence.ErrStale)
		}
	})
}

// levels returns the isolation levels to try.
func (s *store) levels() []sql.IsolationLevel {
	if s.driver == "sqlite" {
		return []sql.IsolationLevel{sql.LevelDefault} // there is only one
	}
	return []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
}

// A Check above READ COMMITTED says that the transaction is too old, as Begin does not.
func TestRetry(t *testing.T) {
	on(t, func(t *testing.T, s *store) {
		check := func(st fence.Stamp, end func(*sql.Tx) error) error {
			tx, err := s.BeginTx(t.Context(), &sql.TxOptions{Isolation: s.levels()[len(s.levels())-1]})
			require.NoError(t, err)
			defer func() { require.NoError(t, end(tx)) }()
			return s.table.Check(t.Context(), tx, st)
		}
		rollBack, commit := (*sql.Tx).Rollback, (*sql.Tx).Commit
		if s.driver == "pgx" {
			require.ErrorIs(t, check(stamp("k", 8, 1), rollBack), fence.ErrRetry)
			require.ErrorIs(t, check(stamp("k", 8, 1), commit), fence.ErrRetry, "what was rolled back does not count")
		}
		require.NoError(t, check(stamp("k", 8, 1), commit))
		require.ErrorIs(t, check(stamp("k", 8, 2), commit), fence.ErrStale)
	})
}
