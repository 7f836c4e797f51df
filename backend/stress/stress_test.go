package stress

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	shortStress = 2 * time.Second
	longRound   = 15 * time.Second
	mixLimit    = 3 * time.Minute // until each of wantedKinds has happened
	calmLimit   = 2 * time.Minute // until all are served when the faults have ended
)

var (
	lockKeys = []string{"key0", "key1", "key2", "key3", "{key4}", "key\n5"}
	lockTTLs = []time.Duration{300 * time.Millisecond, 800 * time.Millisecond, 2 * time.Second}
)

// lasts returns how long a part of DLOCK_LONG lasts.
func lasts(t *testing.T, part string, otherwise time.Duration) time.Duration {
	t.Helper()
	text := long.Of(part)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, part)
	return d
}

// TestStress runs rounds until stress of DLOCK_LONG has passed. See the package documentation.
func TestStress(t *testing.T) {
	redistest.Real(t)
	d, seed := lasts(t, "stress", shortStress), rand.Uint64()
	if text := long.Of("stress-seed"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	skipped := false // for lack of a server
	for end := time.Now().Add(d); !t.Failed() && !skipped; seed++ {
		t.Run(fmt.Sprintf("stress-seed=%d", seed), func(t *testing.T) {
			defer func() { skipped = t.Skipped() }()
			runRound(t, seed, min(longRound, max(shortStress, time.Until(end))))
		})
		if !time.Now().Before(end) {
			return
		}
	}
}

// A round is one run of workers and faults, with a server of its own.
type round struct {
	t      *testing.T
	server *redistest.Server
	*journal
	chaos   *chaos
	workers *workerGroup
	limit   context.Context // of the round; it ends when waiters are not served in time
	end     context.CancelFunc
	stop    context.Context // for the workers
	endWork context.CancelFunc
}

func runRound(t *testing.T, seed uint64, d time.Duration) {
	r := &round{t: t, server: redistest.Start(t), journal: newJournal()}
	awaitGoroutines := watchGoroutines(t)
	r.limit, r.end = context.WithCancel(t.Context())
	r.stop, r.endWork = context.WithCancel(r.limit)
	defer r.end()
	r.work(seed, d)
	r.settle()
	r.closeAll()
	r.report()
	awaitGoroutines()
}

// watchGoroutines returns a function that waits until all goroutines that were started in
// between have ended, but for those that attend a server or read what processes say.
func watchGoroutines(t *testing.T) (await func()) {
	ignored := []goleak.Option{
		goleak.IgnoreCurrent(),
		goleak.IgnoreAnyFunction("github.com/dlock-go/dlock/internal/redistest.(*process).attend"),
		goleak.IgnoreAnyFunction("github.com/dlock-go/dlock/internal/proctest.New.func1"),
	}
	return func() { awaitNil(t, "goroutines to end", func() error { return goleak.Find(ignored...) }) }
}

// newGroup returns a group whose events are recorded as those of a process.
func (r *round) newGroup(process string, seed uint64) *workerGroup {
	return &workerGroup{keys: lockKeys, ttls: lockTTLs, seed: seed, stop: r.stop, limit: r.limit, note: r.by(process),
		peek: func(key string) (string, error) { // the holder of a lock that the server has
			reply, err := r.server.Do("GET", key)
			token, _ := reply.(string)
			return token, err
		},
	}
}

// work runs the workers and the faults, for at least d.
func (r *round) work(seed uint64, d time.Duration) {
	r.workers = r.newGroup("main", seed)
	on, calm := context.WithCancel(r.limit)
	defer calm()
	r.chaos = &chaos{
		journal: r.journal, server: r.server, on: on, late: r.limit,
		rng:   rand.New(rand.NewPCG(seed, 0)),
		pace:  min(d/50, []time.Duration{20, 60, 200, 600}[seed%4]*time.Millisecond),
		group: func(process string) *workerGroup { return r.newGroup(process, seed) },
	}
	for i, lib := range clients.All {
		p, err := faultproxy.New(r.server.Addr())
		require.NoError(r.t, err)
		r.t.Cleanup(p.Close)
		r.chaos.proxies = append(r.chaos.proxies, p)
		for path, addr := range map[string]string{"proxied/": p.Addr(), "direct/": r.server.Addr()} {
			_, err := r.workers.start(path+lib.Name, openAt(i, addr), perClient, (*worker).anything)
			require.NoError(r.t, err)
		}
	}
	awaitChildren := r.chaos.startChildren(r.t, order{Addrs: []string{r.server.Addr()}, Keys: lockKeys, TTLs: lockTTLs, Seed: seed})
	faults := make(chan struct{})
	go func() { defer close(faults); r.chaos.run() }()
	r.awaitMix(d)
	calm()
	<-faults
	r.abandonAll()
	r.endWork()
	r.fault("calm")
	late := time.AfterFunc(calmLimit, r.tooLate)
	defer late.Stop()
	calmed := time.Now()
	awaitChildren()
	r.workers.wg.Wait()
	r.t.Logf("all were served within %v of the last fault", time.Since(calmed).Round(time.Millisecond))
}

// abandonAll acquires every lock and never releases it, and leaves time for others to
// queue up.
func (r *round) abandonAll() {
	for i, key := range lockKeys {
		c, err := r.workers.connect("abandoner", openAt(i%len(clients.All), r.server.Addr()))
		require.NoError(r.t, err)
		w := r.workers.worker(fmt.Sprint("abandoner/", i), i, c.With(dlock.WithRenewal(false)))
		r.workers.wg.Go(func() { w.abandon(w.acquire(r.limit, w.client, key)) })
	}
	time.Sleep(100 * time.Millisecond)
}

// awaitMix returns when d has passed and each of wantedKinds has happened.
func (r *round) awaitMix(d time.Duration) {
	for {
		time.Sleep(10 * time.Millisecond)
		r.look()
		missing, age := r.missing(wantedKinds), time.Since(r.begun)
		switch {
		case age > mixLimit:
			r.t.Errorf("never happened: %q", missing)
			return
		case age > d && len(missing) == 0:
			return
		}
	}
}

// tooLate logs the waits that go on after calmLimit, and ends them.
func (r *round) tooLate() {
	r.t.Errorf("not served within %v:\n%s", calmLimit, strings.Join(r.waiting(), "\n"))
	for _, key := range lockKeys {
		r.t.Logf("%s\n%s", r.state(key), r.around(key, r.Now()))
	}
	r.end()
}

// state describes what the server has stored for a lock.
func (r *round) state(key string) string {
	text := fmt.Sprintf("%q: %v, PTTL %v", key, r.chaos.do("GET", key), r.chaos.do("PTTL", key))
	for _, name := range r.server.Keys(r.t) {
		switch {
		case strings.HasSuffix(name, "dlock1:queue:"+key):
			text += fmt.Sprintf("\n  %q: %q", name, r.chaos.do("ZRANGE", name, "0", "-1", "WITHSCORES"))
		case strings.HasSuffix(name, "dlock1:waiters:"+key):
			text += fmt.Sprintf("\n  %q: %q", name, r.chaos.do("HGETALL", name))
		}
	}
	return text + fmt.Sprintf("\n  channels %q", r.chaos.do("PUBSUB", "CHANNELS"))
}

// settle waits until the queues hold no waiters but dead ones.
func (r *round) settle() {
	if r.t.Failed() {
		return
	}
	awaitNil(r.t, "queues to be empty", func() error {
		for _, name := range r.server.Keys(r.t) {
			if !strings.Contains(name, "dlock1:queue:") {
				continue
			}
			tokens, _ := r.chaos.do("ZRANGE", name, "0", "-1").([]any)
			for _, token := range tokens {
				owner := token.(string)[strings.LastIndex(token.(string), ".")+1:]
				if owner != "child" && owner != "crash" {
					return fmt.Errorf("%q stands in %q", token, name)
				}
			}
		}
		return nil
	})
}

// closeAll closes everything, and checks that the server stores nothing but fence counters.
func (r *round) closeAll() {
	r.end()
	r.workers.close()
	if r.t.Failed() {
		return
	}
	for i := range clients.All {
		r.serveAll(i)
	}
	awaitNil(r.t, "keys to go", func() error { return left(r.server, "KEYS", "*") })
	awaitNil(r.t, "subscriptions to end", func() error { return left(r.server, "PUBSUB", "CHANNELS") })
	awaitNil(r.t, "connections of subscribers to end", func() error {
		if list, _ := r.chaos.do("CLIENT", "LIST", "TYPE", "pubsub").(string); list != "" {
			return fmt.Errorf("%s", list)
		}
		return nil
	})
	for _, p := range r.chaos.proxies {
		p.Close()
	}
}

// serveAll acquires and releases every lock.
func (r *round) serveAll(library int) {
	ctx, cancel := context.WithTimeout(r.t.Context(), calmLimit)
	defer cancel()
	locker, closeClient, err := patiently(ctx, openAt(library, r.server.Addr()))
	require.NoError(r.t, err)
	defer closeClient()
	defer locker.Close()
	client := dlock.New(locker)
	defer client.Close()
	for _, key := range lockKeys {
		lease, err := client.Acquire(ctx, key)
		if err != nil {
			r.t.Errorf("nobody waits, and Acquire(%q): %v\n%s", key, err, r.state(key))
			return
		}
		if err := lease.Release(); err != nil {
			r.t.Errorf("Release(%q): %v\n%s", key, err, r.around(key, r.Now()))
		}
	}
}

// left returns an error if a command lists anything but fence counters, and the marker of votes.
func left(server *redistest.Server, args ...string) error {
	reply, err := server.Do(args...)
	if err != nil {
		return err
	}
	names := slices.DeleteFunc(reply.([]any), func(name any) bool {
		return strings.HasSuffix(name.(string), "}dlock1:fence") || name == "dlock1:birth"
	})
	if len(names) > 0 {
		return fmt.Errorf("%q: %q", args, names)
	}
	return nil
}

// report logs a summary, and fails the test for each violation.
func (r *round) report() {
	r.t.Log(r.summary())
	if r.inconclusive(r.t) {
		return
	}
	_, violations := r.judged(1)
	for _, v := range violations[:min(3, len(violations))] {
		r.t.Errorf("%v\n%s\n%s", v, r.state(v.Key), r.around(v.Key, v.Holds[0].End))
	}
	for _, e := range r.errors {
		r.t.Error(e)
	}
}

// inconclusive reports whether the events of a round cannot be compared.
func (j *journal) inconclusive(t *testing.T) bool {
	j.look()
	if j.stepped {
		t.Log("inconclusive: the clock of this machine was set during the round")
	}
	return j.stepped
}

// awaitNil waits until f returns nil.
func awaitNil(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for limit := time.Now().Add(calmLimit); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Errorf("waiting for %s: %v", what, err)
}

// lines returns the lines of an INFO.
func lines(text string) iter.Seq[string] { return strings.SplitSeq(text, "\r\n") }
