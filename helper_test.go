package dlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errStore = errors.New("store: connection refused")

// A spy is a Locker that notes the calls made of it, and does what the test
// tells it to.
type spy struct {
	dlock.Forward
	hook func(c *call) // runs before each call, in its goroutine; may set c.err, or c.reply

	mu    sync.Mutex
	calls []*call
}

type call struct {
	ctx     context.Context
	op      string
	key     string
	token   string
	ttl     time.Duration
	at      time.Time
	err     error         // returned instead of making the call
	reply   error         // returned after making the call
	delay   time.Duration // of the reply
	attempt *dlock.Attempt
}

func (s *spy) begin(ctx context.Context, op, key, token string, ttl time.Duration) *call {
	c := &call{ctx: ctx, op: op, key: key, token: token, ttl: ttl, at: time.Now()}
	s.mu.Lock()
	s.calls = append(s.calls, c)
	s.mu.Unlock()
	if s.hook != nil {
		s.hook(c)
	}
	return c
}

func (c *call) end(err error) error {
	time.Sleep(c.delay)
	if c.reply != nil {
		return c.reply
	}
	return err
}

func (s *spy) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return s.acquire(s.begin(ctx, "try", key, token, ttl), s.Forward.TryAcquire)
}

func (s *spy) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return s.acquire(s.begin(ctx, "acquire", key, token, ttl), s.Forward.Acquire)
}

func (s *spy) acquire(c *call, f func(context.Context, string, string, time.Duration) (dlock.Attempt, error)) (dlock.Attempt, error) {
	if c.err != nil {
		return dlock.Attempt{}, c.err
	}
	a, err := f(c.ctx, c.key, c.token, c.ttl)
	if c.attempt != nil {
		a = *c.attempt
	}
	if err = c.end(err); err != nil && c.reply != nil {
		a = dlock.Attempt{}
	}
	return a, err
}

func (s *spy) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	c := s.begin(ctx, "renew", key, token, ttl)
	if c.err != nil {
		return false, c.err
	}
	held, err := s.Forward.Renew(c.ctx, key, token, ttl)
	return held, c.end(err)
}

func (s *spy) Release(ctx context.Context, key, token string) (bool, error) {
	c := s.begin(ctx, "release", key, token, 0)
	if c.err != nil {
		return false, c.err
	}
	held, err := s.Forward.Release(c.ctx, key, token)
	return held, c.end(err)
}

func (s *spy) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	c := s.begin(ctx, "batch", batch[0].Key, batch[0].Token, batch[0].TTL)
	if c.err != nil {
		return nil, c.err
	}
	results, err := s.Forward.RenewBatch(ctx, batch)
	return results, c.end(err)
}

// made returns the calls of the given operations so far, of all if none is given.
func (s *spy) made(ops ...string) []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var made []*call
	for _, c := range s.calls {
		for _, op := range ops {
			if c.op == op {
				made = append(made, c)
			}
		}
		if len(ops) == 0 {
			made = append(made, c)
		}
	}
	return made
}

// forget makes the calls so far as if they had not been made.
func (s *spy) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = nil
}

// plain hides the optional interfaces of a Locker, so that waiters poll and
// renewals go one by one.
type plain struct{ dlock.Locker }

// single hides only the batches, so that each renewal is a call of Renew.
type single struct{ *spy }

func (single) RenewBatch(context.Context, []dlock.Renewal) ([]dlock.RenewResult, error) {
	return nil, errors.ErrUnsupported
}

// in runs a test in virtual time, with a spy around a store of its own.
func in(t *testing.T, f func(t *testing.T, store *memory.Locker, s *spy)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		f(t, store, &spy{Forward: dlock.Forward{Locker: store}})
		time.Sleep(time.Minute) // for calls that nobody waits for
	})
}

func acquire(t *testing.T, c *dlock.Client, key string) *dlock.Lease {
	t.Helper()
	l, err := c.Acquire(t.Context(), key)
	require.NoError(t, err)
	return l
}

// requireFree says that nobody holds key, as seen by a new Client.
func requireFree(t *testing.T, store dlock.Locker, key string) {
	t.Helper()
	hold, err := store.(dlock.Inspector).Inspect(t.Context(), key)
	require.NoError(t, err)
	require.False(t, hold.Held, "%q is held", key)
}

func requireHeld(t *testing.T, store dlock.Locker, key, token string) {
	t.Helper()
	hold, err := store.(dlock.Inspector).Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, token, hold.Token, "holder of %q", key)
}

func requireNoContextError(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	require.NotErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
}
