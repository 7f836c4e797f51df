package backend_test

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// How long TestStress makes things difficult, as in DLOCK_STRESS=1h, and the seed that
// repeats what a failure was made of.
const (
	envStress = "DLOCK_STRESS"
	envSeed   = "DLOCK_STRESS_SEED"
)

const (
	shortStress = 2 * time.Second
	longRound   = 15 * time.Second
	mixLimit    = 3 * time.Minute // until everything has happened that is to happen
	calmLimit   = 2 * time.Minute // until everybody is served when faults have stopped
	crewSize    = 4
)

var stressKeys = []string{"key0", "key1", "key2", "key3", "{key4}", "key\n5"}

// TestStress has workers of all client libraries and of several processes use the same
// locks on a server, while connections, processes and the server fail in all ways. In
// the end, nobody must have been certain of a lock while another was, fences must have
// risen, everybody must have been served, and nothing must be left.
func TestStress(t *testing.T) {
	d := shortStress
	if text := os.Getenv(envStress); text != "" {
		var err error
		d, err = time.ParseDuration(text)
		require.NoError(t, err, envStress)
	}
	seed := rand.Uint64()
	if text := os.Getenv(envSeed); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, envSeed)
	}
	for end := time.Now().Add(d); !t.Failed(); seed++ {
		t.Run(fmt.Sprintf("%s=%d", envSeed, seed), func(t *testing.T) {
			stressRound(t, seed, min(longRound, max(shortStress, time.Until(end))))
		})
		if !time.Now().Before(end) {
			return
		}
	}
}

// A stress is one round of the test, with a server of its own.
type stress struct {
	t      *testing.T
	start  time.Time
	server *redistest.Server
	*journal
	chaos   *chaos
	crew    *stressCrew
	limit   context.Context // for everything; it ends when waiters are not served
	end     context.CancelFunc
	stop    context.Context // for the workers
	endWork context.CancelFunc
}

func stressRound(t *testing.T, seed uint64, d time.Duration) {
	s := &stress{t: t, start: time.Now(), server: redistest.Start(t), journal: newJournal()}
	leaks := []goleak.Option{goleak.IgnoreCurrent(), goleak.IgnoreAnyFunction("github.com/dlock-go/dlock/internal/redistest.(*process).attend")}
	s.limit, s.end = context.WithCancel(t.Context())
	s.stop, s.endWork = context.WithCancel(s.limit)
	defer s.end()
	s.work(seed, d)
	s.settle()
	s.closeAll()
	s.report()
	await(t, "goroutines to end", func() error { return goleak.Find(leaks...) })
}

// newCrew returns workers that report as a process.
func (s *stress) newCrew(process string, seed uint64) *stressCrew {
	return &stressCrew{
		keys: stressKeys, seed: seed, stop: s.stop, limit: s.limit, peek: s.peek,
		note: func(e event) { s.note(process, e) },
	}
}

// peek returns what the server has as the holder of a lock.
func (s *stress) peek(key string) (string, error) {
	reply, err := s.server.Do("GET", key)
	token, _ := reply.(string)
	return token, err
}

// work has the workers work, under faults of all kinds, for d at least.
func (s *stress) work(seed uint64, d time.Duration) {
	s.crew = s.newCrew("main", seed)
	on, calm := context.WithCancel(s.limit)
	defer calm()
	s.chaos = &chaos{
		journal: s.journal, server: s.server, on: on, late: s.limit.Done(),
		rng:  rand.New(rand.NewPCG(seed, 0)),
		pace: min(d/50, []time.Duration{20, 60, 200, 600}[seed%4]*time.Millisecond),
		crew: func(process string) *stressCrew { return s.newCrew(process, seed) },
	}
	for i := range libraries {
		p, err := faultproxy.New(s.server.Addr())
		require.NoError(s.t, err)
		s.t.Cleanup(p.Close)
		s.chaos.proxies = append(s.chaos.proxies, p)
		require.NoError(s.t, s.crew.employ("proxied", i, p.Addr(), crewSize))
		require.NoError(s.t, s.crew.employ("direct", i, s.server.Addr(), crewSize))
	}
	children := make(chan error, 2)
	for i := range cap(children) {
		o := order{s.server.Addr(), stressKeys, seed + uint64(i)<<32}
		go func() { children <- s.chaos.raise(fmt.Sprintf("child%d", i), i, o) }()
	}
	faults := make(chan struct{})
	go func() {
		defer close(faults)
		s.chaos.run()
	}()
	s.awaitMix(d)
	calm()
	<-faults
	s.desert()
	s.endWork()
	s.fault("calm")
	late := time.AfterFunc(calmLimit, s.tooLate)
	defer late.Stop()
	calmed := time.Now()
	for range cap(children) {
		if err := <-children; err != nil {
			s.t.Error(err)
		}
	}
	s.crew.wg.Wait()
	s.t.Logf("everybody was served within %v of the last fault", time.Since(calmed).Round(time.Millisecond))
}

// desert has somebody take every lock who does not give it back, and leaves time for
// others to queue up behind.
func (s *stress) desert() {
	for i, key := range stressKeys {
		library := i % len(libraries)
		client, err := s.crew.connect("deserter", library, s.server.Addr())
		require.NoError(s.t, err)
		w := s.crew.worker("deserter", library, i, client.With(dlock.WithRenewal(false)))
		s.crew.wg.Go(func() { w.abandon(w.acquire(s.limit, w.client, key)) })
	}
	time.Sleep(100 * time.Millisecond)
}

// awaitMix returns after d, when enough of everything has happened.
func (s *stress) awaitMix(d time.Duration) {
	for {
		time.Sleep(10 * time.Millisecond)
		s.look(s.start)
		missing, age := s.missing(stressKinds), time.Since(s.start)
		switch {
		case age > mixLimit:
			s.t.Errorf("of these, nothing has happened: %q", missing)
			return
		case age > d && len(missing) == 0:
			return
		}
	}
}

// tooLate tells who waits though faults have stopped, and makes them give up.
func (s *stress) tooLate() {
	s.t.Errorf("not served within %v:\n%s", calmLimit, strings.Join(s.waiting(), "\n"))
	for _, key := range stressKeys {
		s.t.Logf("%s\n%s", s.state(key), s.history(key, now()))
	}
	s.end()
}

// state tells what the server knows of a lock.
func (s *stress) state(key string) string {
	text := fmt.Sprintf("%q: %v, PTTL %v", key, s.chaos.ask("GET", key), s.chaos.ask("PTTL", key))
	for _, name := range s.keys() {
		switch {
		case strings.HasSuffix(name, "dlock1:queue:"+key):
			text += fmt.Sprintf("\n  %q: %q", name, s.chaos.ask("ZRANGE", name, "0", "-1", "WITHSCORES"))
		case strings.HasSuffix(name, "dlock1:waiters:"+key):
			text += fmt.Sprintf("\n  %q: %q", name, s.chaos.ask("HGETALL", name))
		}
	}
	return text + fmt.Sprintf("\n  channels %q", s.chaos.ask("PUBSUB", "CHANNELS"))
}

func (s *stress) keys() []string {
	list, _ := s.chaos.ask("KEYS", "*").([]any)
	names := make([]string, len(list))
	for i, name := range list {
		names[i] = name.(string)
	}
	return names
}

// settle waits until only those stand in a queue that have died there.
func (s *stress) settle() {
	if s.t.Failed() {
		return
	}
	await(s.t, "queues to be empty", func() error {
		for _, name := range s.keys() {
			if !strings.Contains(name, "dlock1:queue:") {
				continue
			}
			tokens, _ := s.chaos.ask("ZRANGE", name, "0", "-1").([]any)
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

// closeAll closes everything, and makes sure that nothing is left.
func (s *stress) closeAll() {
	s.end()
	s.crew.retire()
	if s.t.Failed() {
		return
	}
	for i := range libraries {
		s.serveAll(i)
	}
	await(s.t, "keys to go", func() error { return s.left("KEYS", "*") })
	await(s.t, "subscriptions to end", func() error { return s.left("PUBSUB", "CHANNELS") })
	await(s.t, "connections of subscribers to end", func() error {
		if list, _ := s.chaos.ask("CLIENT", "LIST", "TYPE", "pubsub").(string); list != "" {
			return fmt.Errorf("%s", list)
		}
		return nil
	})
	for _, p := range s.chaos.proxies {
		p.Close()
	}
}

// serveAll takes and frees every lock.
func (s *stress) serveAll(library int) {
	ctx, cancel := context.WithTimeout(s.t.Context(), calmLimit)
	defer cancel()
	locker, closeClient, err := dialPatiently(ctx, library, s.server.Addr())
	require.NoError(s.t, err)
	defer closeClient()
	defer locker.Close()
	client := dlock.New(locker)
	defer client.Close()
	for _, key := range stressKeys {
		lease, err := client.Acquire(ctx, key)
		if err != nil {
			s.t.Errorf("nobody waits, and Acquire(%q): %v\n%s", key, err, s.state(key))
			return
		}
		if err := lease.Release(); err != nil {
			s.t.Errorf("Release(%q): %v\n%s", key, err, s.history(key, now()))
		}
	}
}

// left returns an error if there is something that is not a counter of fences.
func (s *stress) left(args ...string) error {
	reply, err := s.server.Do(args...)
	if err != nil {
		return err
	}
	names := slices.DeleteFunc(reply.([]any), func(name any) bool {
		return strings.HasSuffix(name.(string), "}dlock1:fence")
	})
	if len(names) > 0 {
		return fmt.Errorf("%q: %q", args, names)
	}
	return nil
}

// report says what was wrong with what happened, and what happened.
func (s *stress) report() {
	s.t.Logf("%v: %s", time.Since(s.start).Round(time.Millisecond), s.summary())
	s.look(s.start)
	if s.stepped {
		s.t.Log("the clock of this machine was set meanwhile: who held what when cannot be told")
		return
	}
	flaws := s.judge()
	for _, f := range flaws[:min(3, len(flaws))] {
		s.t.Errorf("%q: %s\n%s\n%s", f.key, f.text, s.state(f.key), s.history(f.key, f.at))
	}
	for _, e := range s.errors {
		s.t.Error(e)
	}
}

// await waits until what returns nil.
func await(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for limit := time.Now().Add(calmLimit); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Errorf("waiting for %s: %v", what, err)
}

// lines are those of an INFO.
func lines(text string) iter.Seq[string] { return strings.SplitSeq(text, "\r\n") }
