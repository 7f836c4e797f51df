package dlock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestBatchesAreUsedAgainAfterAFailure(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l, m := acquire(t, c, "k"), acquire(t, c, "l")
		store.Fail(errStore)
		time.Sleep(20 * time.Second)
		store.Fail(nil)
		time.Sleep(20 * time.Second)
		n, singly := len(s.made("batch")), len(s.made("renew"))
		require.NotZero(t, singly)
		time.Sleep(time.Minute)
		require.Greater(t, len(s.made("batch")), n)
		require.Len(t, s.made("renew"), singly)
		require.NoError(t, l.Release())
		require.NoError(t, m.Release())
	})
}

// Renewals stay in batches after an outage.
func TestBatchesAfterAnOutage(t *testing.T) {
	const ttl = 30 * time.Second
	for _, leases := range []int{10, 5000 / slower} {
		for _, f := range []fault{refuse, hang, ignore, lose} {
			t.Run(fmt.Sprintf("leases=%d,%s", leases, f), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					_, n := overLine(t)
					c := dlock.New(n, dlock.WithTTL(ttl))
					all, _ := acquireAll(t, c, "k", leases)
					n.setRTT(25 * time.Millisecond)
					time.Sleep(8 * time.Second)
					n.fail(f, 15*time.Second)
					n.forget()
					time.Sleep(time.Minute)
					requireNoneLost(t, all)
					requireBatches(t, n, leases, ttl)
					require.NoError(t, c.Close())
				})
			})
		}
	}
}

// requireBatches says that the calls of the last minute were few.
func requireBatches(t *testing.T, n *line, leases int, ttl time.Duration) {
	t.Helper()
	rounds := int(3 * time.Minute / ttl)
	most := 4 * rounds * ((leases + perBatch - 1) / perBatch)
	if calls := n.made("batch", "renew"); calls > most {
		t.Errorf("%d RenewBatch and %d Renew in a minute for %d leases with a TTL of %v, want at most %d",
			n.made("batch"), n.made("renew"), leases, ttl, most)
	}
}

type shortBatch struct{ dlock.Forward }

func (shortBatch) RenewBatch(context.Context, []dlock.Renewal) ([]dlock.RenewResult, error) {
	return []dlock.RenewResult{}, nil
}

func TestBatchWithTooFewResults(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(shortBatch{s.Forward})
		leases, _ := acquireAll(t, c, "k", 2)
		time.Sleep(time.Hour)
		requireNoneLost(t, leases) // they are renewed singly
		require.NoError(t, c.Close())
	})
}

func TestPartlyFailedBatch(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		a, b := acquire(t, c, "a"), acquire(t, c, "b")
		store.Steal("a", time.Hour)
		<-a.Done()
		time.Sleep(time.Hour)
		require.NoError(t, b.Err())
		require.NoError(t, b.Release())
	})
}

// A key that makes every batch fail costs no other its lease. When batches succeed
// again, leases are renewed in batches.
func TestPoisonedBatch(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	const ttl = 30 * time.Second
	for _, leases := range []int{10, 2500 / slower} {
		for _, alone := range []bool{false, true} { // the key fails also by itself
			for name, fails := range map[string]func(context.Context, string) error{"hangs": hangIf("poison"), "fails": failIf("poison")} {
				for _, outage := range []time.Duration{0, 6 * time.Second, 15 * time.Second} {
					t.Run(fmt.Sprintf("leases=%d,fails alone=%v,%s,outage=%v", leases, alone, name, outage), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							var poisonous atomic.Bool
							poison := func(ctx context.Context, key string) error {
								if !poisonous.Load() {
									return nil
								}
								return fails(ctx, key)
							}
							_, n := overLine(t)
							p := &spoiled{Forward: dlock.Forward{Locker: n}, batch: poison, alone: func(ctx context.Context, key string) error {
								if !alone {
									return nil
								}
								return poison(ctx, key)
							}}
							c := dlock.New(p, dlock.WithTTL(ttl))
							others, _ := acquireAll(t, c, "good", leases-1)
							bad := acquire(t, c, "poison")
							n.setRTT(time.Millisecond)
							time.Sleep(8 * time.Second)
							n.fail(refuse, outage)
							poisonous.Store(true)

							time.Sleep(5 * time.Minute)
							requireNoneLost(t, others)
							if err := bad.Err(); !alone && err != nil {
								t.Errorf("the poisonous lease, which can be renewed alone: %v, want it held", err)
							}
							poisonous.Store(false)
							time.Sleep(2 * time.Minute)
							n.forget()
							time.Sleep(time.Minute)
							requireNoneLost(t, others)
							requireBatches(t, n, leases, ttl)
							require.NoError(t, c.Close())
						})
					})
				}
			}
		}
	}
}

// A key whose every renewal hangs costs no other its lease.
func TestSpoiledBatch(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(&spoiled{Forward: dlock.Forward{Locker: s}, alone: hangIf("bad"), batch: hangIf("bad")})
		leases, _ := acquireAll(t, c, "", 500)
		bad := acquire(t, c, "bad")
		time.Sleep(10 * time.Minute)
		requireNoneLost(t, leases)
		require.ErrorIs(t, bad.Err(), dlock.ErrLost)
		require.NoError(t, c.Close())
	})
}

// A poisonous lease that is the first of its batch (the earliest deadline) is chosen as the probe.
func TestPoisonIsTheProbe(t *testing.T) {
	for _, rtt := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 100 * time.Millisecond} {
		for _, first := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("rtt=%v,poisons=%d", rtt, first), func(t *testing.T) {
				in(t, func(t *testing.T, store *memory.Locker, _ *spy) {
					c := dlock.New(&spoiled{Forward: dlock.Forward{Locker: store}, rtt: rtt, alone: failIf("poison"), batch: failIf("poison")})
					for i := range first {
						acquire(t, c, fmt.Sprint("poison", i))
						time.Sleep(time.Millisecond)
					}
					others, _ := acquireAll(t, c, "good", 100)
					time.Sleep(10 * time.Minute)
					requireNoneLost(t, others)
					require.NoError(t, c.Close())
				})
			})
		}
	}
}

// A probe that hangs does not keep others from having one.
func TestProbeThatHangsDoesNotBlockTheNext(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, _ *spy) {
		var poisonous atomic.Bool
		long := dlock.New(&spoiled{
			Forward: dlock.Forward{Locker: store},
			rtt:     5 * time.Millisecond,
			alone:   hangIf("hangs"),
			batch: func(_ context.Context, key string) error {
				if key == "hangs" || key == "poison" && poisonous.Load() {
					return errStore
				}
				return nil
			},
		}, dlock.WithTTL(time.Hour))
		c := long.With(dlock.WithTTL(30 * time.Second))
		acquire(t, long, "hangs")
		time.Sleep(time.Second)
		acquire(t, long, "beside")
		time.Sleep(21 * time.Minute) // the batch of both has failed, and the probe hangs
		others, _ := acquireAll(t, c, "good", 100)
		acquire(t, c, "poison")
		poisonous.Store(true)
		time.Sleep(5 * time.Minute)
		requireNoneLost(t, others)
		require.NoError(t, c.Close())
		time.Sleep(time.Hour)
	})
}

// A dead shard does not cost the leases of the others.
func TestHeadOfLineRenewals(t *testing.T) {
	for name, wrap := range map[string]func(dlock.Locker) dlock.Locker{
		"single": func(l dlock.Locker) dlock.Locker { return plain{l} },
		"batch":  func(l dlock.Locker) dlock.Locker { return l },
	} {
		for _, n := range []int{40, 100, 200, 300, 500, 1000} {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				in(t, func(t *testing.T, store *memory.Locker, s *spy) {
					s.hook = func(c *call) {
						if c.renews() {
							time.Sleep(5 * time.Millisecond)
						}
					}
					c := dlock.New(wrap(&spoiled{Forward: dlock.Forward{Locker: s}, alone: hangIf("bad")}))
					var good []*dlock.Lease
					for i := range n {
						acquire(t, c, fmt.Sprint("bad", i))
						good = append(good, acquire(t, c, fmt.Sprint("good", i)))
					}
					time.Sleep(time.Minute)
					requireNoneLost(t, good)
					for _, l := range good {
						l.Release()
					}
				})
			})
		}
	}
}
