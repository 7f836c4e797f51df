package world

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
)

// A process has a Client.
type process struct {
	*world
	number, life int
	name         string
	conns        []*conn     // to each server
	closes       []io.Closer // what the client uses
	locker       *watched    // of the client
	client       *dlock.Client
	dead         chan struct{} // closed when it was killed

	// Guarded by the world's mutex.
	tokens int  // that have a name
	sets   int  // that are acquired now: they rely on tokens while they wait for others
	drops  bool // the next release
	heard  []*heard
	pauses bool          // the next call of a wait stands still
	paused chan struct{} // closed when it goes on; nil if none stands still
}

// newProcess starts a process.
func (w *world) newProcess(number, life int) *process {
	p := &process{world: w, number: number, life: life, dead: make(chan struct{})}
	p.name = letter(number) + strings.Repeat("+", life)
	var nodes []dlock.Locker
	for i := range w.servers {
		c := &conn{process: p, store: i, server: w.servers[w.store(p.name, i)]}
		opts := []rediscore.Option{rediscore.WithQueue(w.kind != polls || number == 0)}
		if w.kind == replicas {
			opts = append(opts, rediscore.WithReplicas(w.kind.replicas(), time.Second))
		}
		locker := rediscore.New(c, opts...)
		p.conns, p.closes, nodes = append(p.conns, c), append(p.closes, locker), append(nodes, locker)
	}
	locker := nodes[0]
	if w.kind == majority {
		opts := []redlock.Option{redlock.WithLongestTTL(w.ttl)}
		if w.unguarded {
			opts = append(opts, redlock.WithoutGuard())
		}
		majority := redlock.New(nodes, opts...)
		locker, p.closes = majority, slices.Insert(p.closes, 0, io.Closer(majority))
	}
	opts := []dlock.Option{dlock.WithTTL(w.ttl), dlock.WithOutage(w.outage), dlock.WithObserver(p.observer())}
	if n := w.turns[number]; n > 0 {
		opts = append(opts, dlock.WithLocalTurns(n))
	}
	p.locker = &watched{dlock.Forward{Locker: w.recorder.Locker(p.name, locker)}, p}
	p.client = dlock.New(p.locker, opts...)
	return p
}

// kill ends a process. What it holds then ends with its TTL.
func (p *process) kill(keys []string) {
	p.mu.Lock()
	for _, key := range keys {
		token, _ := p.holder(key)
		p.relied[token]++
	}
	p.mu.Unlock()
	close(p.dead)
	_ = p.client.Close() // of a process that has ended, nothing goes on
	p.close()
}

func (p *process) close() {
	for _, c := range p.closes {
		_ = c.Close()
	}
}

func (p *process) isDead() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// goOn lets a wait go on that stands still.
func (p *process) goOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused != nil {
		close(p.paused)
		p.paused = nil
	}
}

// A watched Locker notes the tokens of a process, and which calls rely on them. It can drop a release that is owed.
type watched struct {
	dlock.Forward
	process *process
}

func (w *watched) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	w.process.pause("TryAcquire " + key + token)
	defer w.process.rely(token)()
	return w.Forward.TryAcquire(ctx, key, token, ttl)
}

func (w *watched) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	w.process.pause(fmt.Sprint("TryAcquireSet ", set))
	for _, a := range set {
		defer w.process.rely(a.Token)()
	}
	return w.Forward.Locker.(dlock.SetAcquirer).TryAcquireSet(ctx, set)
}

func (w *watched) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	w.process.pause("Acquire " + key + token)
	defer w.process.rely(token)()
	return w.Forward.Acquire(ctx, key, token, ttl)
}

func (w *watched) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	w.process.pause("Renew " + key + token)
	return w.Forward.Renew(ctx, key, token, ttl)
}

func (w *watched) Release(ctx context.Context, key, token string) (bool, error) {
	w.process.pause("Release " + key + token)
	if w.process.driver.drops(w.process) {
		return false, errors.ErrUnsupported
	}
	return w.Forward.Release(ctx, key, token)
}

func (p *process) pause(name string) { p.driver.pause(p, name) }

// acquireAll acquires some keys, in an order that differs from process to process.
func (p *process) acquireAll(ctx context.Context, client *dlock.Client, keys []string) (*dlock.Leases, error) {
	count := func(n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.sets += n
	}
	count(1)
	defer count(-1)
	keys = slices.Clone(keys)
	p.draws(p.name).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return client.AcquireAll(ctx, keys...)
}

// hold holds a lease until over is closed, and releases it.
func (p *process) hold(over <-chan struct{}, lease *dlock.Lease, asked time.Duration) {
	end := p.certain(over, lease, asked)
	err := lease.Release()
	if now := p.recorder.Now(); errors.Is(err, dlock.ErrLost) && !p.isDead() && !p.mayBeLost(asked) {
		end(now)
	}
	p.say("releases %s, fence %d: %v", lease.Key(), lease.Fence(), err)
}

// certain holds a lease until over is closed, or the lease ends. Then lost notes that it was lost.
func (p *process) certain(over <-chan struct{}, lease *dlock.Lease, asked time.Duration) (lost func(time.Duration)) {
	end := p.holds(lease, asked, lease.Deadline)
	hold := p.recorder.Hold(p.name, lease, asked)
	p.write(lease)
	select {
	case <-over:
	case <-lease.Done():
	case <-p.dead:
	}
	p.write(lease)
	deadline := lease.Deadline()
	p.recorder.End(hold, lease)
	end()
	return func(now time.Duration) {
		if now < p.recorder.At(deadline) {
			hold.Lost = now
		}
	}
}

// say writes a line of the journal, unless the process has ended.
func (p *process) say(format string, args ...any) {
	if !p.isDead() {
		p.note("%s %s", p.name, fmt.Sprintf(format, args...))
	}
}

var _ dlock.SetAcquirer = (*watched)(nil)
