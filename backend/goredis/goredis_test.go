package goredis

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

func TestMain(m *testing.M) { adaptertest.Main(m) }

func TestAdapter(t *testing.T) {
	adaptertest.Run(t, adaptertest.Adapter{
		Dial: dialWith(redis.UniversalOptions{MaxRetries: 3}),
		Nil:  func(opts ...rediscore.Option) *rediscore.Locker { return New((*redis.Client)(nil), opts...) },
	})
}

// dialWith dials clients with some options.
func dialWith(o redis.UniversalOptions) adaptertest.Dial {
	return func(t testing.TB, s adaptertest.Settings) (rediscore.Conn, error) {
		o := o
		o.Addrs, o.MasterName, o.Password, o.ContextTimeoutEnabled = s.Addrs, s.Master, s.Password, true
		o.DialTimeout, o.ReadTimeout = max(5*time.Second, s.Timeout), s.Timeout
		client := redis.NewUniversalClient(&o)
		t.Cleanup(func() { client.Close() })
		return newConn(client), nil
	}
}

// A cluster's client, and a client that is not known, repeat what was not answered with the code of their own.
func TestNothingIsSentTwice(t *testing.T) {
	for name, wrap := range map[string]func(testing.TB, *redis.Options) redis.UniversalClient{
		"cluster": func(t testing.TB, o *redis.Options) redis.UniversalClient {
			return clusterClient(t, redis.ClusterOptions{MaxRetries: 3}, func() string { return o.Addr })
		},
		"wrapped": func(t testing.TB, o *redis.Options) redis.UniversalClient {
			client := redis.NewClient(o)
			t.Cleanup(func() { client.Close() })
			return struct{ *redis.Client }{client}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			adaptertest.NothingIsSentTwice(t, adaptertest.Adapter{Dial: func(t testing.TB, s adaptertest.Settings) (rediscore.Conn, error) {
				return newConn(wrap(t, &redis.Options{Addr: s.Addrs[0], MaxRetries: 3})), nil
			}})
		})
	}
}

// A ring is refused: on two of its clients a key may be on two servers.
func TestRing(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { ring.Close() })
	l := New(ring)
	t.Cleanup(func() { l.Close() })
	adaptertest.RequireInvalid(t, l, "client: a ring")
}

// What a server has refused says so, though a decorated client repeats the call.
func TestRefusalsThatAreRepeated(t *testing.T) {
	replica := redistest.StartReplica(t, redistest.Start(t))
	client := redis.NewClient(&redis.Options{Addr: replica.Addr(), MaxRetries: 3})
	t.Cleanup(func() { client.Close() })
	l := New(struct{ *redis.Client }{client})
	_, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
	require.ErrorContains(t, err, "READONLY")
	require.True(t, dlock.NoEffect(err))
	require.NoError(t, l.Close())
}
