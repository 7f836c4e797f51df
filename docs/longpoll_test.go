package docs_test

import (
	"context"
	"crypto/rand"
	"encoding/gob"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestLongPolls: a lock service over HTTP whose waiters poll, as writing-a-backend.md describes it.
func TestLongPolls(t *testing.T) {
	redistest.Real(t)
	if israce.Enabled {
		t.Skip("takes two minutes with the race detector")
	}
	t.Parallel()
	service := &service{store: memory.New(), waits: make(map[place]*wait)}
	server := httptest.NewServer(service)
	t.Cleanup(server.Close)
	dial := func(t *testing.T, addr string) dlock.Locker {
		transport := &http.Transport{MaxIdleConnsPerHost: 512}
		t.Cleanup(transport.CloseIdleConnections)
		return &poller{addr, &http.Client{Transport: transport}}
	}
	addr := server.Listener.Addr().String()
	conformance.Run(t, conformance.Harness{
		New:  func(t *testing.T) dlock.Locker { return dial(t, addr) },
		Dial: dial,
		Addr: addr,
		Wipe: func(*testing.T) { service.store.Wipe() },
	})
}

const (
	pollTime = 500 * time.Millisecond // how long the server holds a poll back
	absence  = 3 * time.Second        // how long a waiter keeps its place between two polls

	// How long a waiter has to claim a key: the TTL that it wants, within these limits.
	leastOffer, mostOffer = 100 * time.Millisecond, 3 * time.Second
)

// An answer is the body of every response.
type answer struct {
	dlock.Attempt      // of try, wait and claim
	Held          bool // of renew and release
	Offered       bool // of wait: the waiter is to claim the key
	Over          bool // of wait and claim: the token was released
}

// A service hands the keys of store over to waiters that poll.
type service struct {
	store *memory.Locker
	mu    sync.Mutex
	waits map[place]*wait
}

type place struct{ key, token string }

// A wait is the place of a token in the queue of the store, and then its offer.
type wait struct {
	polls  map[string]context.CancelFunc // ends a poll that is held back, by its ID
	absent *time.Timer                   // ends the wait unless there is a poll
	done   chan struct{}                 // closed when the store has answered, with err
	err    error
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = gob.NewEncoder(w).Encode(s.answer(r)) // fails if the client has gone
}

func (s *service) answer(r *http.Request) (a answer) {
	ctx, q := context.Background(), r.URL.Query()
	p, ttl := place{q.Get("key"), q.Get("token")}, time.Duration(0)
	_, _ = fmt.Sscan(q.Get("ttl"), (*int64)(&ttl))
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waits[p]
	switch r.URL.Path {
	case "/try":
		if a.Attempt, _ = s.store.TryAcquire(ctx, p.key, p.token, ttl); a.Acquired {
			delete(s.waits, p)
		}
	case "/wait":
		if a.Attempt = s.again(p, ttl); !a.Acquired {
			return s.wait(r.Context(), p, ttl, q.Get("id"))
		}
	case "/leave":
		if w != nil && w.polls[q.Get("id")] != nil {
			w.polls[q.Get("id")]()
		}
	case "/claim":
		if w != nil && w.isDone() {
			delete(s.waits, p)
		}
		a.Attempt = s.again(p, ttl)
		a.Over = w == nil && !a.Acquired // if the offer has lapsed, the waiter polls again
	case "/renew":
		if w == nil { // an offer is no lease
			a.Held, _ = s.store.Renew(ctx, p.key, p.token, ttl)
		}
	case "/release":
		delete(s.waits, p)
		held, _ := s.store.Release(ctx, p.key, p.token)
		a.Held = held && w == nil
	}
	return a
}

// again makes a lease of an offer, and grants a key again to its holder.
func (s *service) again(p place, ttl time.Duration) (a dlock.Attempt) {
	ctx := context.Background()
	if s.waits[p] != nil {
		return a
	}
	if held, _ := s.store.Renew(ctx, p.key, p.token, ttl); held {
		a, _ = s.store.TryAcquire(ctx, p.key, p.token, ttl)
	}
	return a
}

// wait returns when p has an offer or was released, or the poll has ended. s.mu is held, but not while it waits.
func (s *service) wait(ctx context.Context, p place, ttl time.Duration, id string) answer {
	ctx, leave := context.WithTimeout(ctx, pollTime)
	defer leave()
	w := s.waits[p]
	if w == nil {
		w = s.begin(p, ttl)
	}
	w.polls[id] = leave
	w.absent.Stop()
	s.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done(): // the time is over, the client has left, or its connection has ended
	}
	s.mu.Lock()
	delete(w.polls, id)
	switch {
	case w.isDone():
		return answer{Offered: w.err == nil, Over: errors.Is(w.err, dlock.ErrReleased)}
	case len(w.polls) == 0 && errors.Is(ctx.Err(), context.Canceled):
		w.absent.Reset(0)
	case len(w.polls) == 0:
		w.absent.Reset(absence)
	}
	hold, _ := s.store.Inspect(context.Background(), p.key)
	return answer{Attempt: dlock.Attempt{Holder: hold.Token, Remaining: hold.Remaining}}
}

// begin joins the queue of the store.
func (s *service) begin(p place, ttl time.Duration) *wait {
	ctx, end := context.WithCancel(context.Background())
	w := &wait{polls: make(map[string]context.CancelFunc), absent: time.AfterFunc(absence, end), done: make(chan struct{})}
	s.waits[p] = w
	go func() {
		defer end()
		offer := min(max(ttl, leastOffer), mostOffer)
		_, w.err = s.store.Acquire(ctx, p.key, p.token, offer)
		forget := offer + absence // a late claim learns that it is late
		if w.err != nil {
			forget = 0
		}
		close(w.done)
		time.AfterFunc(forget, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.waits[p] == w {
				delete(s.waits, p)
			}
		})
	}()
	return w
}

func (w *wait) isDone() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// A poller is a client of a service.
type poller struct {
	addr string
	http *http.Client
}

func (l *poller) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return l.begin(ctx, "try", key, token, ttl)
}

func (l *poller) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	a, err := l.call(ctx, "renew", key, token, ttl, "")
	return a.Held, err
}

func (l *poller) Release(ctx context.Context, key, token string) (bool, error) {
	a, err := l.call(ctx, "release", key, token, 0, "")
	return a.Held, err
}

// Acquire sends no attempt: one that arrives after ctx has ended and the token was released would take
// the key, but a poll only gets an offer.
func (l *poller) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	var refused dlock.Attempt
	for {
		sent := time.Now()
		a, err := l.poll(ctx, key, token, ttl)
		if a.Holder != "" {
			refused = dlock.Attempt{Since: time.Now(), Holder: a.Holder, Remaining: a.Remaining}
		}
		switch {
		case err != nil:
			return refused, err
		case a.Acquired:
			return dlock.Attempt{Acquired: true, Since: sent, Fence: a.Fence}, nil
		case a.Over:
			return dlock.Attempt{}, &dlock.NoEffectError{Err: dlock.ErrReleased}
		case ctx.Err() != nil && refused.Holder != "":
			return refused, &dlock.NoEffectError{Err: ctx.Err()} // one Release ends place and offer
		case ctx.Err() != nil:
			return refused, ctx.Err()
		case a.Offered:
			if claimed, err := l.begin(ctx, "claim", key, token, ttl); err != nil || claimed.Acquired {
				return claimed, err
			}
		}
	}
}

// poll sends one request of a wait, and returns when it is answered. If ctx ends, it asks the server
// for the answer, and gives up after a second: a request that was given up may arrive after a Release,
// over another connection, and take a place again.
func (l *poller) poll(ctx context.Context, key, token string, ttl time.Duration) (answer, error) {
	if ctx.Err() != nil {
		return answer{}, ctx.Err() // nothing is sent
	}
	id := rand.Text()
	patient, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(time.Second, giveUp)
		_, _ = l.call(patient, "leave", key, token, ttl, id) // the answer to the poll says it all
	})
	defer stop()
	a, err := l.call(patient, "wait", key, token, ttl, id)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return a, err
}

// begin sends the request that begins a lease, which is a claim or an attempt.
func (l *poller) begin(ctx context.Context, method, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	sent := time.Now()
	a, err := l.call(ctx, method, key, token, ttl, "")
	if a.Over {
		err = &dlock.NoEffectError{Err: dlock.ErrReleased}
	}
	if a.Since = (time.Time{}); a.Acquired {
		a.Since = sent
	}
	return a.Attempt, err
}

// call sends one request. It is a POST, which package net/http does not repeat once a part of it was
// sent. If ctx ends, the error is that of ctx.
func (l *poller) call(ctx context.Context, method, key, token string, ttl time.Duration, id string) (a answer, err error) {
	switch {
	case key == "":
		return a, fmt.Errorf("%w key: empty", dlock.ErrInvalid)
	case ctx.Err() != nil:
		return a, ctx.Err() // nothing is sent
	}
	limited, cancel := context.WithTimeoutCause(ctx, pollTime+5*time.Second, errors.New("no answer"))
	defer cancel()
	q := url.Values{"key": {key}, "token": {token}, "ttl": {fmt.Sprint(int64(ttl))}, "id": {id}}
	r, err := http.NewRequestWithContext(limited, http.MethodPost, "http://"+l.addr+"/"+method+"?"+q.Encode(), nil)
	if err != nil {
		return a, err
	}
	resp, err := l.http.Do(r)
	if err == nil {
		defer resp.Body.Close()
		err = gob.NewDecoder(resp.Body).Decode(&a)
	}
	switch {
	case err == nil:
		return a, nil
	case ctx.Err() != nil:
		err = ctx.Err()
	}
	return answer{}, err
}
