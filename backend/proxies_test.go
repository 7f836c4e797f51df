package backend_test

import (
	"errors"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// limits are what rented services do not allow: some refuse scripts by their text, others a command that a script calls. The
// words are those of Tair and of Redis, or are made up.
var limits = map[string]struct {
	server []string // options
	reject func(r faultproxy.Request) string
}{
	"PublishWhenCalled": {withoutPublish, func(faultproxy.Request) string { return "" }},
	"PublishByText": {nil, func(r faultproxy.Request) string {
		switch {
		case strings.Contains(sourceOf(r), "PUBLISH"):
			return "ERR PUBLISH is not supported in a script"
		case faultproxy.Command("WAIT")(r):
			return "ERR WAIT is not supported by the proxy"
		}
		return ""
	}},
	"Everything": {withoutPublish, func(r faultproxy.Request) string { return adaptertest.RefuseText(sourceOf(r)) }},
}

var withoutPublish = []string{"--rename-command", "PUBLISH", "", "--rename-command", "WAIT", ""}

// sourceOf is the source of a script, or "".
func sourceOf(r faultproxy.Request) string {
	switch {
	case faultproxy.Command("EVAL")(r):
		return r.Args[1]
	case faultproxy.Command("SCRIPT", "LOAD")(r):
		return r.Args[2]
	}
	return ""
}

// A Locker without a queue passes the suite where scripts are limited, with each library if DLOCK_LONG has adapters. With a queue,
// one error says so.
func TestLimits(t *testing.T) {
	for name, limit := range limits {
		for _, a := range clients.All {
			t.Run(name+"/"+a.Name, func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t, limit.server...)
				proxy, err := faultproxy.New(server.Addr())
				require.NoError(t, err)
				t.Cleanup(proxy.Close)
				proxy.Reject(limit.reject)
				dial := func(t *testing.T, opts ...rediscore.Option) *rediscore.Locker {
					l, _ := a.Dial(t, clients.At(proxy.Addr()), opts...)
					t.Cleanup(func() { require.NoError(t, l.Close()) })
					return l
				}
				requireLimit(t, dial)
				_, err = dial(t, rediscore.WithQueue(false), rediscore.WithReplicas(1, time.Second)).TryAcquire(t.Context(), "r", "t", ttl)
				require.ErrorIs(t, err, dlock.ErrInvalid)
				require.ErrorContains(t, err, "WithReplicas")
				plain := dial(t, rediscore.WithQueue(false))
				_, err = plain.TryAcquireSet(t.Context(), []dlock.Acquisition{{Key: "s", Token: "t", TTL: ttl}, {Key: "s2", Token: "t", TTL: ttl}})
				if name != "Everything" {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, errors.ErrUnsupported)
				if a.Name != "goredis" && !adaptertest.All() {
					return // the scripts are the same
				}
				conformance.Run(t, conformance.Harness{
					New: func(t *testing.T) dlock.Locker {
						if path.Base(t.Name()) == "NoLeaks" {
							t.Skip("other tests run in this process")
						}
						return dial(t, rediscore.WithQueue(false))
					},
					Wipe: func(t *testing.T) { do(t, server, "FLUSHALL") },
					TTL:  400 * time.Millisecond, // other tests run beside it
				})
			})
		}
	}
}

// requireLimit fails unless waiters get an error that names the option once, and leave nothing.
func requireLimit(t *testing.T, dial func(*testing.T, ...rediscore.Option) *rediscore.Locker) {
	plain := dial(t, rediscore.WithQueue(false))
	acquire(t, plain, "k", "H")
	_, err := dial(t).Acquire(t.Context(), "k", "w", ttl)
	_, err2 := dlock.New(dial(t)).Acquire(t.Context(), "k")
	for _, err := range []error{err, err2} {
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.Equal(t, 1, strings.Count(err.Error(), "WithQueue(false)"), err.Error())
		require.NotErrorIs(t, err, dlock.ErrUnavailable)
	}
	held, err := plain.Release(t.Context(), "k", "w") // as who gets the error must
	require.NoError(t, err)
	require.False(t, held)
	require.Eventually(t, func() bool { // the Client releases in the background
		hold, err := plain.Inspect(t.Context(), "k")
		return err == nil && hold.Token == "H" && hold.Waiting == 0
	}, patient, pause)
	release(t, plain, "k", "H")
}
