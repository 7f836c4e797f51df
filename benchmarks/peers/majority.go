package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	goredislib "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// longest is the longest TTL of redlock, and the TTL of all locks on nodes. Nodes vote when the first
// request was a little longer ago.
const longest = 5 * time.Second

// majorities are the contestants that take a lock on several servers, and dlock on the first of them.
var majorities = []contestant{
	{name: "dlock, one server", client: "go-redis", settings: "WithFence(true)", why: "a grant without a fence is an error", open: openOneServer},
	{name: "redlock", client: "go-redis", settings: "WithLongestTTL(5s); WithFence(true)", why: "new servers vote when a run begins", open: openRedlock},
	contestants[0],
	{name: "redsync, FailFast", client: "go-redis", settings: "WithFailFast(true), and as redsync", why: "it does not wait for the slowest server", open: redsyncOnGoredis(redsync.WithFailFast(true))},
}

// inMajority are those that take a lock on several servers.
var inMajority = majorities[1:]

func openOneServer(j job) (locks, error) {
	store, closeClient, err := dlockOnGoredis(j.Addrs[0])
	if err != nil {
		return locks{}, err
	}
	return lockWith(dlock.New(store, dlock.WithTTL(j.TTL), dlock.WithFence(true)), func() { store.Close(); closeClient() }), nil
}

func openRedlock(j job) (locks, error) {
	l, r, end := dialNodes(j.Addrs, redlock.WithLongestTTL(longest))
	all := lockWith(dlock.New(l, dlock.WithTTL(j.TTL), dlock.WithFence(true)), end)
	all.second = func(h held) bool { return r.second(h.lease, len(j.Addrs)/2+1) }
	return all, nil
}

// rounds knows the fences that nodes gave to tokens, and so whether a majority gave the same one.
type rounds struct {
	mu     sync.Mutex
	fences map[string]map[int]int64 // of a token, by node
}

func (r *rounds) note(token string, node int, b quorum.Ballot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.Acquired && r.fences[token] == nil {
		r.fences[token] = make(map[int]int64)
	}
	if b.Acquired {
		r.fences[token][node] = b.Fence
	}
}

// second reports whether a lease needed a second round, in which nodes raise their fences.
func (r *rounds) second(l *dlock.Lease, quorum int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, fence := range r.fences[l.Token()] {
		if fence >= l.Fence() {
			quorum--
		}
	}
	delete(r.fences, l.Token())
	return quorum > 0
}

// A noted node is one whose votes are noted.
type noted struct {
	*rediscore.Locker
	node int
	*rounds
}

func (n noted) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	b, err := n.Locker.Vote(ctx, key, token, ttl, floor)
	n.note(token, n.node, b)
	return b, err
}

func (n noted) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	b, err := n.Locker.AcquireVote(ctx, key, token, ttl, floor, place)
	n.note(token, n.node, b)
	return b, err
}

// dialNodes returns a Locker that decides by the majority of nodes.
func dialNodes(addrs []string, opt redlock.Option) (l *redlock.Locker, r *rounds, end func()) {
	r = &rounds{fences: make(map[string]map[int]int64)}
	var nodes []dlock.Locker
	var closers []io.Closer
	for i, addr := range addrs {
		client := dialGoredis(addr)
		node := goredis.New(client)
		closers = append(closers, node, client)
		nodes = append(nodes, noted{node, i, r})
	}
	l = redlock.New(nodes, opt)
	return l, r, func() { l.Close(); closeAll(closers) }
}

// A farm is the servers of which a majority decides.
type farm struct {
	agree []*redistest.Server
	apart []*redistest.Server // their clocks differ by up to 100 ms from the system's
}

// startFarm starts them, and waits until they vote.
func startFarm(t testing.TB) (n farm) {
	goredislib.SetLogger(silent{})
	for i := range 5 {
		n.agree = append(n.agree, redistest.Start(t))
		n.apart = append(n.apart, redistest.StartAhead(t, time.Duration(i-2)*50*time.Millisecond))
	}
	for _, servers := range [][]*redistest.Server{n.agree, n.apart} {
		var addrs []string
		for _, s := range servers {
			addrs = append(addrs, s.Addr())
		}
		l, _, end := dialNodes(addrs, redlock.WithLongestTTL(longest))
		defer end()
		for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
			_, err := l.TryAcquire(context.Background(), "first", "nobody", longest)
			if err == nil {
				break
			}
			if time.Since(begun) > 2*longest+10*time.Second {
				t.Fatal(err)
			}
		}
	}
	return n
}

func (b bench) serversOf(s scenario) []*redistest.Server {
	switch {
	case s.nodes == 0:
		return []*redistest.Server{b.server}
	case s.apart:
		return b.farm.apart[:s.nodes]
	}
	return b.farm.agree[:s.nodes]
}

// empty removes what an earlier turn has left. A node that is emptied altogether does not vote.
func (s scenario) empty(server *redistest.Server) error {
	if s.nodes == 0 {
		_, err := server.Do("FLUSHALL")
		return err
	}
	reply, err := server.Do("KEYS", "*order:*")
	del := []string{"DEL"}
	keys, _ := reply.([]any)
	for _, k := range keys {
		del = append(del, k.(string))
	}
	if err != nil || len(keys) == 0 {
		return err
	}
	_, err = server.Do(del...)
	return err
}

// A fault makes a node, behind a proxy, do what a broken one does. The function that it returns ends it.
type fault func(server *redistest.Server, p *faultproxy.Proxy, rtt time.Duration) (heal func())

func down(_ *redistest.Server, p *faultproxy.Proxy, _ time.Duration) func() {
	p.Refuse()
	return func() {}
}

func slow(_ *redistest.Server, p *faultproxy.Proxy, rtt time.Duration) func() {
	p.Slow(faultproxy.ToClient, faultproxy.Pace{Latency: rtt/2 + 500*time.Millisecond})
	return func() {}
}

func hung(server *redistest.Server, _ *faultproxy.Proxy, _ time.Duration) func() {
	server.Suspend()
	return server.Resume
}

// onNodes returns the scenarios of the chapter about majorities.
func onNodes(rtt time.Duration) (all []scenario) {
	base := scenario{RTT: rtt, TTL: longest, nodes: 5, rounds: 2, Window: time.Second, N: 1, among: majorities, run: cycles}
	add := func(name string, change func(s *scenario)) {
		s := base
		s.Name = name
		change(&s)
		all = append(all, s)
	}
	add("alone, 3 servers", func(s *scenario) { s.nodes = 3 })
	add("alone, 5 servers", func(s *scenario) {})
	base.rounds, base.Window = 1, 3*time.Second
	add("alone, 1 of 5 slow", func(s *scenario) { s.faulty, s.fault = 1, slow })
	add("clocks apart, alone", func(s *scenario) { s.apart, s.among = true, inMajority[:1] })
	add("clocks apart, contended", func(s *scenario) {
		s.apart, s.among, s.run, s.hold, s.N = true, inMajority[:1], crowd, time.Millisecond, 16
	})
	add("renewals", func(s *scenario) { s.among, s.run, s.N = inMajority[:1], renewals, 5_000 })
	add("renewals, 1 of 5 hung", func(s *scenario) {
		s.among, s.run, s.N, s.faulty, s.fault = inMajority[:1], renewals, 5_000, 1, hung
	})
	add("idle, 5 servers", func(s *scenario) { s.among, s.run, s.N, s.Window = inMajority, idle, 16, 5*time.Second })
	base.among, base.run, base.hold = inMajority, crowd, time.Millisecond
	add("hold 10 ms", func(s *scenario) { s.hold, s.N = 10*time.Millisecond, 16 })
	for _, n := range []int{16, 64} {
		for lost := range 3 {
			add(fmt.Sprint(lost, " of 5 down"), func(s *scenario) {
				s.N, s.faulty, s.fault, s.Window = n, lost, down, 3*time.Second+time.Duration(n)*100*time.Millisecond
			})
		}
	}
	return all
}

// crowd has N processes pass one lock on, when each has had it once.
func crowd(ctx context.Context, t turn, figures map[string]float64) ([]time.Duration, error) {
	jobs := make([]job, t.N)
	for i := range jobs {
		jobs[i] = job{Keys: 1, Workers: 1, First: i, Pause: t.hold, Warm: 4 * time.Second, Patient: t.N > 16}
	}
	return t.contended(ctx, figures, jobs...)
}

// renewals measures how long one renewal of N leases takes.
func renewals(ctx context.Context, t turn, figures map[string]float64) ([]time.Duration, error) {
	l, _, end := dialNodes(t.addrs, redlock.WithoutGuard())
	defer end()
	batch := make([]dlock.Renewal, t.N)
	for i := range batch {
		batch[i] = dlock.Renewal{Key: key(i), Token: fmt.Sprint("holder ", i), TTL: time.Minute} // all are taken in less
	}
	job{Keys: t.N, Workers: 64}.share(func(i int) {
		b := batch[i]
		for a, err := l.TryAcquire(ctx, b.Key, b.Token, b.TTL); ctx.Err() == nil && (err != nil || !a.Acquired); {
			a, err = l.TryAcquire(ctx, b.Key, b.Token, b.TTL)
		}
	})
	var took []time.Duration
	lost := 0.0
	for begun := time.Now(); time.Since(begun) < t.Window; time.Sleep(t.Window / 50) {
		sent := time.Now()
		results, err := l.RenewBatch(ctx, batch)
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(sent))
		for _, r := range results {
			if !r.Held {
				lost++
			}
		}
	}
	figures["batch ms"] = milliseconds(median(took))
	figures["lost"] = lost
	return nil, nil
}
