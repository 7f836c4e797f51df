package httplock

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/dlock-go/dlock"
)

// A Locker is a client of a [Server].
type Locker struct {
	addr string
	http *http.Client
}

var (
	_ dlock.Locker   = (*Locker)(nil)
	_ dlock.Acquirer = (*Locker)(nil)
)

// New returns a client of the server at addr, host and port. The transport of c should keep
// as many idle connections to a host as there are waiters.
func New(addr string, c *http.Client) *Locker { return &Locker{addr, c} }

// TryAcquire implements [dlock.Locker].
func (l *Locker) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	sent := time.Now()
	a, err := l.call(ctx, "try", parameters(key, token, ttl))
	if err != nil || !a.Held {
		return dlock.Attempt{Holder: string(a.Holder), Remaining: a.Remaining}, err
	}
	return dlock.Attempt{Acquired: true, Since: sent, Fence: a.Fence}, nil
}

// Acquire implements [dlock.Acquirer]. It sends no attempt: one that arrives after ctx has
// ended and the token was released would take the key, but a poll only gets an offer.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	var refused dlock.Attempt
	for {
		sent := time.Now()
		a, err := l.poll(ctx, key, token, ttl)
		if len(a.Holder) > 0 {
			refused = dlock.Attempt{Since: time.Now(), Holder: string(a.Holder), Remaining: a.Remaining}
		}
		switch {
		case err != nil:
			return refused, err
		case a.Held:
			return dlock.Attempt{Acquired: true, Since: sent, Fence: a.Fence}, nil
		case a.Over:
			return dlock.Attempt{}, over()
		case ctx.Err() != nil && refused.Holder != "":
			return refused, &dlock.NoEffectError{Err: ctx.Err()} // one Release ends place and offer
		case ctx.Err() != nil:
			return refused, ctx.Err()
		case a.Offered:
			if claimed, err := l.claim(ctx, key, token, ttl); err != nil || claimed.Acquired {
				return claimed, err
			}
		}
	}
}

// poll sends one request of a wait, and returns when it is answered. If ctx ends, it asks
// the server for the answer, and gives up after a second: a request that was given up may
// arrive after a Release, over another connection, and take a place again.
func (l *Locker) poll(ctx context.Context, key, token string, ttl time.Duration) (answer, error) {
	if ctx.Err() != nil {
		return answer{}, ctx.Err() // nothing is sent
	}
	q := parameters(key, token, ttl)
	q.Set("id", rand.Text())
	patient, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(time.Second, giveUp)
		_, _ = l.call(patient, "leave", q) // the answer to the poll says it all
	})
	defer stop()
	a, err := l.call(patient, "wait", q)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return a, err
}

// claim makes a lease of ttl of an offer, unless that has lapsed.
func (l *Locker) claim(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	sent := time.Now()
	a, err := l.call(ctx, "claim", parameters(key, token, ttl))
	switch {
	case err != nil:
		return dlock.Attempt{}, err
	case a.Over:
		return dlock.Attempt{}, over()
	}
	return dlock.Attempt{Acquired: a.Held, Since: sent, Fence: a.Fence}, nil
}

// over says that a wait has ended because its token was released.
func over() error { return &dlock.NoEffectError{Err: dlock.ErrReleased} }

// Renew implements [dlock.Locker].
func (l *Locker) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	a, err := l.call(ctx, "renew", parameters(key, token, ttl))
	return a.Held, err
}

// Release implements [dlock.Locker].
func (l *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	a, err := l.call(ctx, "release", parameters(key, token, 0))
	return a.Held, err
}

// patience is how long a call may take longer than the server holds it back.
const patience = 5 * time.Second

// call sends one request. It is a POST, which package net/http does not repeat once a part
// of it was sent. If ctx ends, the error is that of ctx.
func (l *Locker) call(ctx context.Context, method string, q url.Values) (a answer, err error) {
	if ctx.Err() != nil {
		return a, ctx.Err() // nothing is sent
	}
	limited, cancel := context.WithTimeoutCause(ctx, pollTime+patience, errors.New("httplock: no answer"))
	defer cancel()
	switch err = l.post(limited, method, q, &a); {
	case err == nil:
		return a, nil
	case ctx.Err() != nil:
		return answer{}, ctx.Err()
	}
	return answer{}, err
}

func parameters(key, token string, ttl time.Duration) url.Values {
	return url.Values{"key": {key}, "token": {token}, "ttl": {strconv.FormatInt(ttl.Milliseconds(), 10)}}
}

func (l *Locker) post(ctx context.Context, method string, q url.Values, a *answer) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+l.addr+"/"+method+"?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := l.http.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("httplock: %s", resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(a)
}
