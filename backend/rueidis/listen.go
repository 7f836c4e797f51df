package rueidis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/dlock-go/dlock/backend/internal/rediserr"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// Listen implements [rediscore.Conn]. It subscribes on the connection over which rueidis sends the
// commands of all callers: one of the blocking pool could be the last, which the application needs
// for its own blocking commands. With AlwaysRESP2, rueidis makes one connection for all subscriptions
// on a master.
func (c conn) Listen(ctx context.Context, channel string, sharded bool, on func(rediscore.Event)) error {
	if err := c.closing.before(); err != nil {
		return err
	}
	s := &subscription{on: on, guard: c.client}
	s.ctx, s.stop = context.WithCancel(ctx)
	defer s.stop()
	subscribe := c.client.B().Subscribe().Channel(channel).Build()
	s.unsubscribe = func() rueidis.Completed { return c.client.B().Unsubscribe().Channel(channel).Build() }
	if sharded {
		subscribe = c.client.B().Ssubscribe().Channel(channel).Build()
		s.unsubscribe = func() rueidis.Completed { return c.client.B().Sunsubscribe().Channel(channel).Build() }
	}
	hooked := rueidis.WithOnSubscriptionHook(s.ctx, s.subscribed)
	hooked = rueidis.WithOnReceiveReturnHook(hooked, s.ending)
	client := rueidis.CoreClient(c.client.Client)
	slow := time.AfterFunc(subscribeLimit, s.fail)
	if sharded {
		address, _ := c.Locate(ctx, channel).(string)
		if node := c.client.Nodes()[address]; node != nil {
			client = node
		}
	} else {
		client = c.master(s.ctx)
	}
	if l := c.detour.use(); l != nil {
		client = l
		defer c.detour.leave(l, false)
	}
	c.client.begin() // others may wait for the connection that it makes
	err := rediserr.Call(func() error {
		return client.Receive(hooked, subscribe, func(m rueidis.PubSubMessage) {
			s.tell(rediscore.Event{Kind: rediscore.Message, Payload: m.Message})
		})
	})
	slow.Stop()
	lost := s.end()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.masters.forget()
	if lost != nil {
		err = lost
	}
	return c.closing.after(ctx, err)
}

// subscribeLimit is how long Listen tries to subscribe. rueidis alone would try for ever, also to
// reach a master that has been replaced.
const subscribeLimit = 2 * time.Second

// unsubscribeLimit is how long Listen waits for the server to end its subscription.
const unsubscribeLimit = time.Second

var (
	errEnded = errors.New("subscription ended")
	errSlow  = fmt.Errorf("not subscribed within %v", subscribeLimit)
)

// A subscription is one Listen.
type subscription struct {
	guard       *guard
	ctx         context.Context
	stop        context.CancelFunc
	unsubscribe func() rueidis.Completed
	leaving     sync.WaitGroup

	mu   sync.Mutex
	on   func(rediscore.Event) // nil when Listen has returned
	live bool                  // the server has confirmed the subscription
	lost error
}

func (s *subscription) tell(e rediscore.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on != nil {
		s.on(e)
	}
}

// end returns when the server has ended the subscription, or does not answer. It returns why the
// subscription was lost, or nil if it was not.
func (s *subscription) end() (lost error) {
	s.mu.Lock()
	s.on, lost = nil, s.lost
	if !s.live {
		if err := s.ctx.Err(); err != nil {
			s.guard.note(err)
		}
		s.guard.inFlight.Add(-1)
	}
	s.mu.Unlock()
	s.leaving.Wait()
	return lost
}

// lose ends Receive with an error.
func (s *subscription) lose(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loseLocked(err)
}

func (s *subscription) loseLocked(err error) {
	s.lost = err
	s.stop()
	s.guard.note(err)
}

// fail ends Receive unless the server has confirmed the subscription.
func (s *subscription) fail() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.live {
		s.loseLocked(errSlow)
	}
}

func (s *subscription) subscribed(now rueidis.PubSubSubscription) {
	if now.Kind == "subscribe" || now.Kind == "ssubscribe" {
		s.mu.Lock()
		if !s.live && s.on != nil {
			s.live = true
			s.guard.end(nil)
		}
		s.mu.Unlock()
		s.tell(rediscore.Event{Kind: rediscore.Subscribed})
	}
}

// ending is called when a subscription has failed or ended. rueidis follows redirections, and would
// subscribe again after a lost connection, which ending prevents. It ends a subscription that the
// server still has, over the connection that this is on. It cannot wait for the answer, because
// rueidis reads no more until it has returned. rueidis (as of 1.0.79) sends a PING behind UNSUBSCRIBE, and panics if the server
// refuses that, but for want of the right to it: with MASTERDOWN, or with MISCONF when it cannot save. So nothing is sent to a
// server that refuses a PING before: the messages are read, and dropped.
func (s *subscription) ending(err error, wire rueidis.CommandClient) error {
	if _, reply := rueidis.IsRedisErr(err); reply {
		return err
	}
	if s.ctx.Err() == nil {
		if err == nil {
			err = errEnded
		}
		s.lose(err)
		return errEnded
	}
	s.leaving.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), unsubscribeLimit)
		defer cancel()
		_ = rediserr.Try(func() {
			err := wire.Do(ctx, s.guard.B().Ping().Build()).Error()
			if err == nil || strings.Contains(err.Error(), "'ping'") {
				wire.Do(ctx, s.unsubscribe())
			}
		})
	})
	return err
}
