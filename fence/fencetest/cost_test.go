//go:build unix

package fencetest_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestCost compares transactions on PostgreSQL without a check, with one in the same batch as the
// first write, and with one of its own: the median of a transaction's time in each of ten runs, and
// the median of those. Transactions take turns, as the machine may be busy. It only measures.
func TestCost(t *testing.T) {
	if lasts == 0 {
		t.Skip("measures if DLOCK_LONG has fences")
	}
	ctx, s := t.Context(), databases[0].fresh(t)
	s.do(t, "INSERT INTO account VALUES (0, 0, 0)")
	conn, err := pgx.Connect(ctx, s.dsn)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	check, args, err := s.table.Query(stamp("k", 8, 1))
	require.NoError(t, err)
	for _, rest := range []string{"", " w w", " w w w w w w"} { // further round trips, each with a write
		variants := []string{"w" + rest, "cw" + rest, "c w" + rest}
		shares := make([][]float64, len(variants)) // of the time without a check, for each run
		var base []float64
		for range 10 {
			took := make([][]float64, len(variants))
			for end := time.Now().Add(lasts / 20); time.Now().Before(end); {
				for i, v := range variants {
					begun := time.Now()
					tx, err := conn.Begin(ctx)
					require.NoError(t, err)
					for _, trip := range strings.Fields(v) {
						b := new(pgx.Batch)
						for _, c := range trip {
							if c == 'c' {
								b.Queue(check, args...)
							} else {
								b.Queue("UPDATE account SET changes = changes + 1 WHERE id = $1", 0)
							}
						}
						require.NoError(t, tx.SendBatch(ctx, b).Close())
					}
					require.NoError(t, tx.Commit(ctx))
					took[i] = append(took[i], float64(time.Since(begun)))
				}
			}
			base = append(base, median(took[0]))
			for i := range variants {
				shares[i] = append(shares[i], median(took[i])/median(took[0]))
			}
		}
		for i, v := range variants {
			t.Logf("%-16s %.3f of %v (%.3f to %.3f)", v, median(shares[i]), time.Duration(median(base)), shares[i][0], shares[i][9])
		}
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
