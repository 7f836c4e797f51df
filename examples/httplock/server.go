package httplock

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	pollTime   = 500 * time.Millisecond // how long the server holds a poll back
	absence    = 3 * time.Second        // how long a waiter keeps its place between two polls
	offerMost  = 3 * time.Second        // how long a waiter has to claim an offer: the TTL that it wants, within limits
	offerLeast = 100 * time.Millisecond
)

// A Server is the http.Handler of a lock server.
type Server struct {
	mu    sync.Mutex
	locks map[string]*lock
	fence int64

	// lapsed says when a token has not claimed its offer in time. Such a waiter may poll
	// again, but one whose token was released may not.
	lapsed map[place]time.Time
}

type place struct{ key, token string }

// NewServer returns a Server without locks.
func NewServer() *Server {
	return &Server{locks: make(map[string]*lock), lapsed: make(map[place]time.Time)}
}

// A lock is a key that is held by a token, or offered to it.
type lock struct {
	token   string
	offered bool
	until   time.Time
	timer   *time.Timer // fires at until
	queue   []*waiter
}

// A waiter is a token's place in a queue.
type waiter struct {
	token string
	ttl   time.Duration
	polls map[string]context.CancelFunc // ends a poll that the server holds back, by its id
	seen  time.Time                     // when the last poll ended
	done  chan struct{}                 // closed when the waiter leaves the queue
}

// An answer is the body of every response.
type answer struct {
	Held      bool          // of renew and release: token held the key. Of the others: it holds the key now
	Fence     int64         // if it holds the key now
	Holder    []byte        // of try and wait, if another holds the key
	Remaining time.Duration // of the holder's lease
	Offered   bool          // of wait: the waiter is to claim the key
	Over      bool          // of wait and claim: the token was released
}

// ServeHTTP answers POST requests to /try, /wait, /leave, /claim, /renew and /release, with
// the parameters key, token and ttl, in milliseconds. To /wait and /leave belongs the id of
// a poll.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	key, token := q.Get("key"), q.Get("token")
	ms, err := strconv.ParseInt(q.Get("ttl"), 10, 64)
	if err != nil || key == "" || token == "" || r.Method != http.MethodPost {
		http.Error(w, "POST, with key, token and ttl", http.StatusBadRequest)
		return
	}
	ttl := time.Duration(ms) * time.Millisecond
	var a answer
	switch r.URL.Path {
	case "/try":
		a = s.try(key, token, ttl)
	case "/wait":
		a = s.wait(r.Context(), key, token, ttl, q.Get("id"))
	case "/leave":
		s.leave(key, token, q.Get("id"))
	case "/claim":
		a = s.claim(key, token, ttl)
	case "/renew":
		a = s.renew(key, token, ttl)
	case "/release":
		a = s.release(key, token)
	default:
		http.NotFound(w, r)
		return
	}
	_ = json.NewEncoder(w).Encode(a) // fails if the client has gone
}

func (s *Server) try(key, token string, ttl time.Duration) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lock(key)
	switch {
	case l == nil:
		l = s.add(key)
	case l.token != token:
		return l.refusal()
	}
	return s.grant(l, token, ttl)
}

// claim makes a lease of an offer. If the offer has lapsed, nothing changes.
func (s *Server) claim(key, token string, ttl time.Duration) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lock(key)
	if l == nil || l.token != token {
		return answer{Over: s.lapsed[place{key, token}].IsZero()}
	}
	return s.grant(l, token, ttl)
}

func (s *Server) renew(key, token string, ttl time.Duration) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lock(key)
	if l == nil || l.token != token || l.offered {
		return answer{}
	}
	l.extend(ttl)
	return answer{Held: true}
}

func (s *Server) release(key, token string) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lock(key)
	delete(s.lapsed, place{key, token})
	if l == nil {
		return answer{}
	}
	l.remove(func(w *waiter) bool { return w.token == token })
	if l.token != token {
		return answer{}
	}
	held := !l.offered
	s.free(key, l)
	return answer{Held: held}
}

// wait returns when the token has an offer or was released, when it has waited for pollTime,
// or when the client has left. A token that holds the key already is granted it at once.
func (s *Server) wait(ctx context.Context, key, token string, ttl time.Duration, id string) answer {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, a := s.begin(key, token, ttl, id, cancel)
	if w == nil {
		return a
	}
	poll := time.NewTimer(pollTime)
	defer poll.Stop()
	select {
	case <-w.done:
	case <-poll.C:
	case <-ctx.Done(): // the client has left, or its connection has ended
	}
	return s.end(key, w, id, ctx.Err() != nil)
}

// begin returns the token's place in the queue, or an answer.
func (s *Server) begin(key, token string, ttl time.Duration, id string, cancel context.CancelFunc) (*waiter, answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lock(key)
	if l == nil {
		l = s.add(key)
		l.makeOffer(token, ttl)
	}
	if l.token == token && l.offered {
		return nil, answer{Offered: true}
	}
	if l.token == token {
		return nil, s.grant(l, token, ttl)
	}
	w := l.waiter(token)
	if w == nil {
		w = &waiter{token: token, polls: make(map[string]context.CancelFunc), done: make(chan struct{})}
		l.queue = append(l.queue, w)
	}
	w.ttl, w.polls[id] = ttl, cancel
	return w, answer{}
}

// end ends a poll of w. A waiter whose last client has left loses its place.
func (s *Server) end(key string, w *waiter, id string, left bool) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(w.polls, id)
	w.seen = time.Now()
	l := s.lock(key)
	switch {
	case l != nil && l.token == w.token:
		return answer{Offered: true} // even if another wait of the token has claimed it
	case w.isOut():
		return answer{Over: s.lapsed[place{key, w.token}].IsZero()}
	case l == nil:
		return answer{}
	}
	if left && len(w.polls) == 0 {
		l.remove(func(other *waiter) bool { return other == w })
	}
	return l.refusal()
}

// leave ends a poll whose client does not wait any longer.
func (s *Server) leave(key, token, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lock(key); l != nil {
		if w := l.waiter(token); w != nil && w.polls[id] != nil {
			w.polls[id]()
		}
	}
}

// waiter returns the token's place in the queue, or nil.
func (l *lock) waiter(token string) *waiter {
	i := slices.IndexFunc(l.queue, func(w *waiter) bool { return w.token == token })
	if i < 0 {
		return nil
	}
	return l.queue[i]
}

// isOut reports whether w has left the queue.
func (w *waiter) isOut() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func (l *lock) refusal() answer {
	return answer{Holder: []byte(l.token), Remaining: time.Until(l.until)}
}

// lock returns the lock of key, or nil if it is free. s.mu is held, as it is in all that
// follow.
func (s *Server) lock(key string) *lock {
	if l := s.locks[key]; l != nil && !time.Now().Before(l.until) {
		if l.offered {
			s.lapse(place{key, l.token})
		}
		s.free(key, l)
	}
	return s.locks[key]
}

// lapse remembers p for as long as a waiter may be absent.
func (s *Server) lapse(p place) {
	now := time.Now()
	maps.DeleteFunc(s.lapsed, func(_ place, then time.Time) bool { return now.Sub(then) > absence })
	s.lapsed[p] = now
}

func (s *Server) add(key string) *lock {
	l := &lock{}
	l.timer = time.AfterFunc(time.Hour, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.locks[key] == l {
			s.lock(key)
		}
	})
	s.locks[key] = l
	return l
}

// grant makes token the holder. Fences rise by 8 at least, and also when the server is
// started again.
func (s *Server) grant(l *lock, token string, ttl time.Duration) answer {
	if l.offered {
		l.offered, l.until = false, time.Time{} // the lease begins now
	}
	s.fence = max(s.fence+8, time.Now().UnixMicro())
	l.token = token
	l.extend(ttl)
	return answer{Held: true, Fence: s.fence}
}

func (l *lock) extend(ttl time.Duration) {
	if until := time.Now().Add(ttl); until.After(l.until) {
		l.until = until
		l.timer.Reset(ttl)
	}
}

// free ends the lease or offer of l, and makes an offer to the first waiter that may still
// be there.
func (s *Server) free(key string, l *lock) {
	l.token, l.offered, l.until = "", false, time.Time{}
	l.remove(func(w *waiter) bool { return len(w.polls) == 0 && time.Since(w.seen) > absence })
	if len(l.queue) == 0 {
		l.timer.Stop()
		delete(s.locks, key)
		return
	}
	next := l.queue[0]
	l.makeOffer(next.token, next.ttl)
	l.remove(func(w *waiter) bool { return w == next })
}

// makeOffer reserves a free key for a waiter. The offer ends by itself unless the waiter
// claims it in time.
func (l *lock) makeOffer(token string, ttl time.Duration) {
	l.token, l.offered = token, true
	l.extend(min(max(ttl, offerLeast), offerMost))
}

// remove takes waiters out of the queue.
func (l *lock) remove(which func(*waiter) bool) {
	l.queue = slices.DeleteFunc(l.queue, func(w *waiter) bool {
		if !which(w) {
			return false
		}
		close(w.done)
		return true
	})
}
