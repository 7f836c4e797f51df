//go:build unix

package fencetest_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestCost compares transactions on PostgreSQL without a check, with one in the same batch as the
// write, and with one of its own: the median of a transaction's time in each of ten runs, and the
// median of those. Transactions take turns, as the machine may be busy. It only measures.
func TestCost(t *testing.T) {
	if long == 0 {
		t.Skip("measures for DLOCK_FENCE_LONG")
	}
	ctx, s := t.Context(), databases[0].fresh(t)
	s.do(t, "INSERT INTO account VALUES (0, 0, 0)")
	conn, err := pgx.Connect(ctx, s.dsn)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	query, args, err := s.table.Query(stamp("k", 8, 1))
	require.NoError(t, err)
	type statement struct {
		query string
		args  []any
	}
	check, write := statement{query, args}, statement{"UPDATE account SET changes = changes + 1 WHERE id = $1", []any{0}}
	variants := []struct {
		name  string
		trips [][]statement
	}{
		{"without a check", [][]statement{{write}}},
		{"with a check in the batch of the write", [][]statement{{check, write}}},
		{"with a check of its own", [][]statement{{check}, {write}}},
	}
	transact := func(trips [][]statement) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		for _, trip := range trips {
			b := new(pgx.Batch)
			for _, s := range trip {
				b.Queue(s.query, s.args...)
			}
			require.NoError(t, tx.SendBatch(ctx, b).Close())
		}
		require.NoError(t, tx.Commit(ctx))
	}
	shares := make([][]float64, len(variants)) // of the time without a check, for each run
	var base time.Duration                     // that time, in the last run
	for range 10 {
		took := make([][]float64, len(variants))
		for end := time.Now().Add(long / 10); time.Now().Before(end); {
			for i, v := range variants {
				begun := time.Now()
				transact(v.trips)
				took[i] = append(took[i], float64(time.Since(begun)))
			}
		}
		for i := range variants {
			shares[i] = append(shares[i], median(took[i])/median(took[0]))
		}
		base = time.Duration(median(took[0]))
	}
	for i, v := range variants {
		m := median(shares[i])
		t.Logf("%s: %.3f of %v (%.3f to %.3f)", v.name, m, base, shares[i][0], shares[i][9])
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
