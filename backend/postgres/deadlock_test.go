//go:build unix

package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
)

// Statements of all kinds on the same keys never wait for each other in a circle.
func TestNoDeadlocks(t *testing.T) {
	server := fresh(t)
	p := pool(t, server)
	before := scalar[int](t, p, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range 3 {
		l := open(t, server)
		for n := range 24 {
			all.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					token := fmt.Sprint(rand.Uint64())
					key := fmt.Sprint("k", rand.IntN(12))
					var err error
					switch n % 6 {
					case 0, 1:
						var a dlock.Attempt
						if a, err = l.TryAcquire(t.Context(), key, token, time.Second); a.Acquired {
							_, err = l.Release(t.Context(), key, token)
						}
					case 2:
						var batch []dlock.Renewal
						for range 1 + rand.IntN(9) {
							batch = append(batch, dlock.Renewal{Key: fmt.Sprint("k", rand.IntN(12)), Token: token, TTL: time.Second})
						}
						_, err = l.RenewBatch(t.Context(), batch)
					case 3:
						var set []dlock.Acquisition
						for _, k := range rand.Perm(12)[:1+rand.IntN(5)] {
							set = append(set, dlock.Acquisition{Key: fmt.Sprint("k", k), Token: token, TTL: time.Second})
						}
						set = append(set, dlock.Acquisition{Key: "new" + token, Token: token, TTL: time.Second})
						var as []dlock.Attempt
						if as, err = l.TryAcquireSet(t.Context(), set); err == nil && as[0].Acquired {
							for _, s := range set {
								_, err = l.Release(t.Context(), s.Key, token)
							}
						}
					case 4:
						wctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(300))*time.Millisecond)
						_, err = l.Acquire(wctx, key, token, time.Second)
						if err != nil && wctx.Err() != nil {
							err = nil
						}
						cancel()
						if _, e := l.Release(t.Context(), key, token); err == nil {
							err = e
						}
					case 5:
						_, err = p.Exec(t.Context(), "INSERT INTO dlock SELECT convert_to(k, 'UTF8'), NULL, now() - interval '9 days', now(), 1, current_date - 9 FROM unnest(ARRAY['a', 'k3', 'k7', 'z' || random()]) k ORDER BY 1 ON CONFLICT DO NOTHING")
						if err == nil && i%5 == 0 {
							_, err = p.Exec(t.Context(), "DELETE FROM dlock WHERE key IN (SELECT key FROM dlock WHERE token IS NULL ORDER BY key FOR UPDATE SKIP LOCKED LIMIT 1)")
						}
						time.Sleep(5 * time.Millisecond)
					}
					if err != nil {
						t.Error(n%6, err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	time.Sleep(time.Second)
	require.Equal(t, before, scalar[int](t, p, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))
}
