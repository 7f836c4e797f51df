package goredis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/rediscore"
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
	type listening struct {
		events chan rediscore.Event
		ended  chan error
		cancel context.CancelFunc
	}
	listen := func(channel string) listening {
		ctx, cancel := context.WithCancel(t.Context())
		l := listening{make(chan rediscore.Event, 10), make(chan error, 1), cancel}
		go func() { l.ended <- c.Listen(ctx, channel, false, func(e rediscore.Event) { l.events <- e }) }()
		return l
	}
	within := func(what string, done func() bool) {
		require.Eventually(t, done, 30*time.Second, time.Millisecond, what)
	}
	connections := func() int {
		reply, err := server.Do("CLIENT", "LIST", "TYPE", "pubsub")
		require.NoError(t, err)
		return strings.Count(reply.(string), "\n")
	}
	for range 2 { // the second time with another connection
		var all []listening
		for i := range 20 {
			if i%3 == 1 {
				bad := listen("bad")
				err := <-bad.ended
				require.ErrorContains(t, err, "NOPERM")
				continue
			}
			all = append(all, listen(fmt.Sprint("good", i)))
		}
		for _, l := range all {
			require.Equal(t, rediscore.Event{Kind: rediscore.Subscribed}, <-l.events)
		}
		for range 10 { // an unsubscription before a new subscription
			all[0].cancel()
			require.ErrorIs(t, <-all[0].ended, context.Canceled)
			all[0] = listen("good0")
			require.Equal(t, rediscore.Event{Kind: rediscore.Subscribed}, <-all[0].events)
		}
		gone := listen("gone")
		require.Equal(t, rediscore.Event{Kind: rediscore.Subscribed}, <-gone.events)
		gone.cancel()
		require.ErrorIs(t, <-gone.ended, context.Canceled)
		n, err := server.Do("PUBLISH", "good0", "hello")
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		require.Equal(t, rediscore.Event{Kind: rediscore.Message, Payload: "hello"}, <-all[0].events)
		require.Equal(t, 1, connections())
		within("the subscription of one that has ended", func() bool {
			n, err := server.Do("PUBLISH", "gone", "hello")
			return err == nil && n == int64(0)
		})
		_, err = server.Do("CLIENT", "KILL", "TYPE", "pubsub")
		require.NoError(t, err)
		for _, l := range all {
			require.Error(t, <-l.ended)
		}
		within("no connection stays", func() bool { return connections() == 0 })
	}
	last := listen("good")
	require.Equal(t, rediscore.Event{Kind: rediscore.Subscribed}, <-last.events)
	require.NoError(t, client.Close())
	require.Error(t, <-last.ended)
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
