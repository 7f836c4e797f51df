package goredis

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// Subscriptions of one conn share a connection, and so its errors must be told apart: a refusal
// ends one of them, and a lost connection ends all. Each can be made again at once.
func TestListenersOnOneConnection(t *testing.T) {
	server := redistest.Start(t)
	_, err := server.Do("ACL", "SETUSER", "default", "resetchannels", "&good*", "&gone")
	if err != nil {
		t.Skip(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	c := newConn(client)
	listen := func(channel string) *adaptertest.Inbox { return adaptertest.Listen(t, c, channel, false) }
	within := func(what string, done func() bool) {
		require.Eventually(t, done, 30*time.Second, time.Millisecond, what)
	}
	connections := func() int {
		reply, err := server.Do("CLIENT", "LIST", "TYPE", "pubsub")
		require.NoError(t, err)
		return strings.Count(reply.(string), "\n")
	}
	for range 2 { // the second time with another connection
		var all []*adaptertest.Inbox
		for i := range 20 {
			if i%3 == 1 {
				require.ErrorContains(t, <-listen("bad").Ended, "NOPERM")
				continue
			}
			all = append(all, listen(fmt.Sprint("good", i)))
		}
		for _, l := range all {
			l.RequireSubscribed()
		}
		for range 10 { // an unsubscription before a new subscription
			all[0].Close()
			all[0] = adaptertest.Subscribe(t, c, "good0", false)
		}
		adaptertest.Subscribe(t, c, "gone", false).Close()
		n, err := server.Do("PUBLISH", "good0", "hello")
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		all[0].RequireMessage("hello")
		require.Equal(t, 1, connections())
		within("the subscription of one that has ended", func() bool {
			n, err := server.Do("PUBLISH", "gone", "hello")
			return err == nil && n == int64(0)
		})
		_, err = server.Do("CLIENT", "KILL", "TYPE", "pubsub")
		require.NoError(t, err)
		for _, l := range all {
			require.Error(t, <-l.Ended)
		}
		within("no connection stays", func() bool { return connections() == 0 })
	}
	last := adaptertest.Subscribe(t, c, "good", false)
	require.NoError(t, client.Close())
	require.Error(t, <-last.Ended)
	require.Empty(t, c.listeners.all)
}

// Error replies show whether go-redis has connected again by itself, which ends the connection.
func TestListenerAfterAReconnection(t *testing.T) {
	newListener := func() (*listener, *subscription) {
		s := &subscription{channel: "a", ended: make(chan error, 1)}
		return &listener{
			subscriptions: map[string]*subscription{"a": s},
			unanswered:    []request{{"ssubscribe", s}},
		}, s
	}
	l, s := newListener()
	require.NoError(t, l.refused(redisError("MOVED 1 other:1")))
	require.ErrorContains(t, <-s.ended, "MOVED")
	require.Error(t, l.refused(redisError("MOVED 1 other:1")), "an answer to nothing")

	l, _ = newListener()
	require.Error(t, l.refused(redisError("CROSSSLOT Keys in request don't hash to the same slot")))
	require.Error(t, l.refused(redisError("READONLY You can't write against a read only replica.")))
	require.Error(t, l.refused(errors.New("EOF")))
	require.ErrorIs(t, l.take(&redis.Subscription{Kind: "ssubscribe", Channel: "b"}), errReconnected)
	require.NoError(t, l.take(&redis.Subscription{Kind: "ssubscribe", Channel: "a"}))
	require.ErrorIs(t, l.take(&redis.Subscription{Kind: "ssubscribe", Channel: "a"}), errReconnected)
	require.ErrorIs(t, l.take(&redis.Pong{}), errReconnected)
}

type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}
