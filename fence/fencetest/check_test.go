//go:build unix

package fencetest_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/fence"
)

func TestRule(t *testing.T) {
	on(t, rule)
	for _, d := range others {
		t.Run(d.name, func(t *testing.T) { rule(t, d.fresh(t)) })
	}
}

func rule(t *testing.T, s *store) {
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
		for _, c := range []struct {
			stamp fence.Stamp
			want  error
		}{
			{stamp("k", 8, 1), nil},
			{stamp("k", 8, 2), sql.ErrNoRows},
			{stamp("k", 8, 1), nil},
			{stamp("k", 9, 2), nil},
			{stamp("k", 8, 1), sql.ErrNoRows},
		} {
			query, args, err := s.table.Query(c.stamp)
			if s.driver == "mysql" {
				require.ErrorIs(t, err, errors.ErrUnsupported)
				return
			}
			require.NoError(t, err)
			var accepted bool
			require.Equal(t, c.want, s.QueryRow(query, args...).Scan(&accepted))
			require.Equal(t, c.want == nil, accepted)
		}
	})
}

// A transaction of the old holder commits while the check of the new one waits for it. The new one
// must see what it has written.
func TestNewHolderSeesTheOldOnesRows(t *testing.T) {
	on(t, func(t *testing.T, s *store) {
		for i, level := range s.levels() {
			begin := func(st fence.Stamp) *sql.Tx {
				tx, err := s.table.Begin(t.Context(), s.DB, &sql.TxOptions{Isolation: level}, st)
				require.NoError(t, err, level)
				return tx
			}
			old, next := stamp("k", int64(2*i+8), 1), stamp("k", int64(2*i+9), 2)
			require.NoError(t, s.write(t.Context(), old)) // so that the next one only shares the row
			tx := begin(old)
			if s.driver == "pgx" { // transactions of one lease run side by side
				require.NoError(t, begin(old).Rollback())
			}
			seen := make(chan int64, 1)
			go func() {
				defer close(seen)
				tx := begin(next)
				defer tx.Commit()
				var n int64
				if tx.QueryRow("SELECT count(*) FROM writes").Scan(&n) == nil {
					seen <- n
				}
			}()
			select {
			case <-seen:
				t.Errorf("%v: the check of the new holder has not waited for the old one's transaction", level)
			case <-time.After(100 * time.Millisecond):
			}
			require.NoError(t, insert(t.Context(), tx, old.Fence))
			require.EqualValues(t, 2*i+2, <-seen, "%v: the rows that the new holder sees", level)
			require.ErrorIs(t, s.write(t.Context(), old), fence.ErrStale)
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

// A Check above READ COMMITTED says that the transaction is too old, as Begin does not. A Query refuses.
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
			query, args, _ := s.table.Query(stamp("k", 8, 1))
			tx, err := s.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			require.NoError(t, err)
			require.Equal(t, sql.ErrNoRows, tx.QueryRow(query, args...).Scan(new(bool)))
			require.NoError(t, rollBack(tx))
			require.ErrorIs(t, check(stamp("k", 8, 1), rollBack), fence.ErrRetry)
			require.ErrorIs(t, check(stamp("k", 8, 1), commit), fence.ErrRetry, "what was rolled back does not count")
		}
		require.NoError(t, check(stamp("k", 8, 1), commit))
		require.ErrorIs(t, check(stamp("k", 8, 2), commit), fence.ErrStale)
	})
}
