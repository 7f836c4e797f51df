package peers

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/bsm/redislock"

	"github.com/dlock-go/dlock"
)

// withSets are the contestants that take several locks at once: the key that they are given has their names.
var withSets = []contestant{
	{name: "dlock, sets", client: "go-redis", open: openDlockSets},
	{name: "redislock, sets, again after 10 ms", client: "go-redis", open: openRedislockSets(poll)},
	{name: "redislock, sets, again after 1 ms", client: "go-redis", open: openRedislockSets(time.Millisecond)},
}

func openDlockSets(j job) (acquire, error) {
	store, err := dlockOnGoredis(j.Addrs[0])
	all := dlock.New(store, dlock.WithTTL(j.TTL))
	return func(ctx context.Context, keys string) (held, error) {
		l, err := all.AcquireAll(ctx, strings.Fields(keys)...)
		return held{release: func() bool { return l.Release() == nil }}, err
	}, err
}

func openRedislockSets(pause time.Duration) func(job) (acquire, error) {
	return func(j job) (acquire, error) {
		all := redislock.New(dialGoredis(j.Addrs[0]))
		opt := &redislock.Options{RetryStrategy: redislock.LinearBackoff(pause)}
		return func(ctx context.Context, keys string) (held, error) {
			l, err := all.ObtainMulti(ctx, strings.Fields(keys), j.TTL, opt)
			return held{release: func() bool { return l.Release(context.Background()) == nil }}, err
		}, nil
	}
}

// setsOf returns the scenarios of sets: 64 callers of one process hold sets of 3 of 24 keys for a millisecond.
func setsOf() []scenario {
	near := scenario{name: "sets", n: 64, window: 3 * time.Second, ttl: 30 * time.Second, rounds: 3, hold: time.Millisecond, among: withSets, run: (*turn).sets}
	far := near
	far.name, far.rtt = "sets, 5 ms", 5*time.Millisecond
	return []scenario{near, far}
}

// names returns those of the locks that a worker asks for as key n: a random set, if it takes sets.
func (j job) names(n int) string {
	if j.Set == 0 {
		return key(n)
	}
	var names []string
	for _, k := range rand.Perm(j.Keys)[:j.Set] {
		names = append(names, key(k))
	}
	return strings.Join(names, " ")
}

// sets measures the waits for sets. One that has not ended counts for as long as it has lasted.
func (t *turn) sets(ctx context.Context) {
	r, l := t.together(ctx, job{Keys: 24, Set: 3, Workers: t.n, Pause: t.hold})
	var waits []time.Duration
	taken := 0.0
	for _, t := range r.Tenures {
		got := t.Got
		if got == 0 {
			got = l.until
		}
		if got < l.from || t.Asked > l.until {
			continue
		}
		waits = append(waits, time.Duration(min(got, l.until)-t.Asked))
		if got < l.until {
			taken++
		}
	}
	t.note("rate", taken/l.seconds())
	if len(waits) > 0 {
		t.note("p50 ms", milliseconds(median(waits)))
		t.note("p99 ms", milliseconds(quantile(waits, 0.99)))
		t.note("longest ms", milliseconds(slices.Max(waits)))
		t.note("commands", l.commands/max(taken, 1))
	}
}
