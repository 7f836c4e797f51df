package dlock_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
)

// lostOf returns how many of the leases are not held any more.
func lostOf(leases []*dlock.Lease) (lost int) {
	for _, l := range leases {
		if l.Err() != nil {
			lost++
		}
	}
	return lost
}

func requireNoneLost(t *testing.T, leases []*dlock.Lease) {
	t.Helper()
	if lost := lostOf(leases); lost > 0 {
		t.Errorf("%d of %d leases were lost, want 0", lost, len(leases))
	}
}

// poisoned is a line on which every batch fails that the key "poison" is in.
type poisoned struct {
	*line
	batches atomic.Bool // they fail
	alone   bool        // and so does the key by itself
	hangs   bool        // what fails returns when its ctx ends, else at once
}

func (p *poisoned) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if key == "poison" && p.alone && p.batches.Load() {
		return false, p.fail(ctx)
	}
	return p.line.Renew(ctx, key, token, ttl)
}

func (p *poisoned) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	bad := func(r dlock.Renewal) bool { return r.Key == "poison" }
	if p.batches.Load() && slices.ContainsFunc(batch, bad) {
		p.line.enter("batch")
		defer p.line.leave()
		return nil, p.fail(ctx)
	}
	return p.line.RenewBatch(ctx, batch)
}

func (p *poisoned) fail(ctx context.Context) error {
	if p.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return errStore
}

// A key that makes every batch fail costs no other its lease. When batches succeed
// again, leases are renewed in batches.
func TestPoisonedBatch(t *testing.T) {
	const ttl = 30 * time.Second
	for _, leases := range []int{10, 2500 / slower} {
		for _, alone := range []bool{false, true} {
			for _, hangs := range []bool{false, true} {
				for _, outage := range []time.Duration{0, 6 * time.Second, 15 * time.Second} {
					name := fmt.Sprintf("leases=%d,fails alone=%v,hangs=%v,outage=%v", leases, alone, hangs, outage)
					t.Run(name, func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							_, n := overLine(t)
							p := &poisoned{line: n, alone: alone, hangs: hangs}
							c := dlock.New(p, dlock.WithTTL(ttl))
							others, _ := acquireAll(t, c, "good", leases-1)
							bad := acquire(t, c, "poison")
							n.setRTT(time.Millisecond)
							time.Sleep(8 * time.Second)
							n.fail(refuse, outage)
							p.batches.Store(true)

							time.Sleep(5 * time.Minute)
							requireNoneLost(t, others)
							if err := bad.Err(); !alone && err != nil {
								t.Errorf("the poisonous lease, which can be renewed alone: %v, want it held", err)
							}
							p.batches.Store(false)
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

// requireBatches says that the calls of the last minute were few.
func requireBatches(t *testing.T, n *line, leases int, ttl time.Duration) {
	t.Helper()
	rounds := int(3 * time.Minute / ttl)
	most := 4 * rounds * ((leases + perBatch - 1) / perBatch)
	if calls := n.made("batch") + n.made("renew"); calls > most {
		t.Errorf("%d RenewBatch and %d Renew in a minute for %d leases with a TTL of %v, want at most %d",
			n.made("batch"), n.made("renew"), leases, ttl, most)
	}
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

// Leases are renewed by deadline, however many others came earlier.
func TestShortLeaseBehindLongOnes(t *testing.T) {
	const (
		leases = 10_000 / slower
		rtt    = 10 * time.Millisecond
	)
	synctest.Test(t, func(t *testing.T) {
		_, n := overLine(t)
		c := dlock.New(plain{n})
		long, _ := acquireAll(t, c, "long", leases)
		n.setRTT(rtt)
		time.Sleep(10*time.Second - time.Second/3 - rtt/2) // so that all are due together
		short := acquire(t, c.With(dlock.WithTTL(time.Second)), "short")
		time.Sleep(time.Minute)
		if err := short.Err(); err != nil {
			t.Errorf("the lease of 1 s behind %d of 30 s: %v, want it held", leases, err)
		}
		requireNoneLost(t, long)
		require.NoError(t, c.Close())
	})
}

// The time that a lease of 1 s has left is not the limit of the batch that it is in.
func TestShortLeaseInABatch(t *testing.T) {
	const rtt = 400 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		_, n := overLine(t)
		c := dlock.New(n)
		long, _ := acquireAll(t, c, "long", 100)
		n.setRTT(rtt)
		time.Sleep(10*time.Second - time.Second/3 - rtt/2) // so that all are due together
		short := acquire(t, c.With(dlock.WithTTL(time.Second)), "short")
		time.Sleep(time.Minute)
		if err := short.Err(); err != nil {
			t.Errorf("the lease of 1 s in a batch with 100 of 30 s: %v, want it held", err)
		}
		requireNoneLost(t, long)
		if cut := n.ended("batch"); cut > 0 {
			t.Errorf("%d RenewBatch were ended before their reply came, want 0", cut)
		}
		require.NoError(t, c.Close())
	})
}

// A store that hangs does not get a goroutine for each lease.
func TestGoroutinesOfAStoreThatHangs(t *testing.T) {
	const (
		leases = 10_000 / slower
		most   = 600
		ttl    = 30 * time.Second
	)
	for _, f := range []fault{hang, ignore, lose} {
		t.Run(string(f), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, n := overLine(t)
				c := dlock.New(plain{n}, dlock.WithTTL(ttl))
				all, _ := acquireAll(t, c, "k", leases)
				n.setRTT(time.Millisecond)
				before, peak := runtime.NumGoroutine(), atomic.Int64{}
				n.onCall = func() { peak.Store(max(peak.Load(), int64(runtime.NumGoroutine()-before))) }
				time.Sleep(8 * time.Second)
				n.fail(f, ttl/3)
				time.Sleep(time.Minute)
				requireNoneLost(t, all)
				n.fail(f, time.Minute) // of which no lease survives
				if lost := lostOf(all); lost != leases {
					t.Errorf("%d of %d leases were lost in an outage of twice their TTL, want all", lost, leases)
				}
				if peak.Load() > most {
					t.Errorf("%d goroutines more than before, with %d leases; want at most %d", peak.Load(), leases, most)
				}
				_ = c.Close()
			})
		})
	}
}

// A Renew whose request is lost does not keep the background from renewing.
func TestRenewThatHangs(t *testing.T) {
	for name, wrap := range lockers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, n := overLine(t)
				n.setRTT(time.Millisecond)
				c := dlock.New(wrap(n), dlock.WithTTL(3*time.Second))
				l := acquire(t, c, "k")
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				ended := make(chan error, 1)
				n.set(hang)
				go func() { ended <- l.Renew(ctx) }()
				synctest.Wait()
				n.set(up)
				time.Sleep(2 * time.Minute)
				t.Logf("Renew: %v", <-ended)
				if err := l.Err(); err != nil {
					t.Errorf("after a Renew of which the request was lost: %v, want the lease held", err)
				}
				require.NoError(t, c.Close())
			})
		})
	}
}

// lockers are both ways of renewing.
var lockers = map[string]func(*line) dlock.Locker{
	"batch":  func(n *line) dlock.Locker { return n },
	"single": func(n *line) dlock.Locker { return plain{n} },
}

// A Release does not wait for a renewal that hangs.
func TestReleaseBehindARenewalThatHangs(t *testing.T) {
	const rtt = 10 * time.Millisecond
	for name, wrap := range lockers {
		for _, f := range []fault{hang, ignore, lose} {
			for _, manual := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s,%s,manual=%v", name, f, manual), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						store, n := overLine(t)
						n.setRTT(rtt)
						c := dlock.New(wrap(n))
						l := acquire(t, c, "k")
						acquire(t, c, "k2")
						n.set(f)
						if manual {
							go l.Renew(t.Context())
						}
						for n.made("renew")+n.made("batch") == 0 {
							time.Sleep(rtt)
						}
						time.Sleep(rtt)
						n.set(up)
						begin := time.Now()
						err := l.Release()
						if d := time.Since(begin); err != nil || d > rtt {
							t.Errorf("Release behind a renewal that hangs: %v after %v, want no error after %v", err, d, rtt)
						}
						requireFree(t, store, "k")
						time.Sleep(time.Minute)
						requireFree(t, store, "k")
						require.NoError(t, c.Close())
					})
				})
			}
		}
	}
}
