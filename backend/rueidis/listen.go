package rueidis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"

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
	l := &listening{on: on, guard: c.client}
	l.ctx, l.stop = context.WithCancel(ctx)
	defer l.stop()
	subscribe := c.client.B().Subscribe().Channel(channel).Build()
	l.unsubscribe = func() rueidis.Completed { return c.client.B().Unsubscribe().Channel(channel).Build() }
	if sharded {
		subscribe = c.client.B().Ssubscribe().Channel(channel).Build()
		l.unsubscribe = func() rueidis.Completed { return c.client.B().Sunsubscribe().Channel(channel).Build() }
	}
	hooked := rueidis.WithOnSubscriptionHook(l.ctx, l.subscribed)
	hooked = rueidis.WithOnReceiveReturnHook(hooked, l.ending)
	client := c.client.Client
	slow := time.AfterFunc(subscribeLimit, l.fail)
	if sharded {
		if node := client.Nodes()[c.locate(ctx, channel)]; node != nil {
			client = node
		}
	}
	c.client.begin() // others may wait for the connection that it makes
	err := client.Receive(hooked, subscribe, func(m rueidis.PubSubMessage) {
		l.tell(rediscore.Event{Kind: rediscore.Message, Payload: m.Message})
	})
	slow.Stop()
	lost := l.end()
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

// A listening is one Listen.
type listening struct {
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

func (l *listening) tell(e rediscore.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.on != nil {
		l.on(e)
	}
}

// end returns when the server has ended the subscription, or does not answer. It returns why the
// subscription was lost, or nil if it was not.
func (l *listening) end() (lost error) {
	l.mu.Lock()
	l.on, lost = nil, l.lost
	if !l.live {
		if err := l.ctx.Err(); err != nil {
			l.guard.note(err)
		}
		l.guard.inFlight.Add(-1)
	}
	l.mu.Unlock()
	l.leaving.Wait()
	return lost
}

// lose ends Receive with an error.
func (l *listening) lose(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loseLocked(err)
}

func (l *listening) loseLocked(err error) {
	l.lost = err
	l.stop()
	l.guard.note(err)
}

// fail ends Receive unless the server has confirmed the subscription.
func (l *listening) fail() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.live {
		l.loseLocked(errSlow)
	}
}

func (l *listening) subscribed(s rueidis.PubSubSubscription) {
	if s.Kind == "subscribe" || s.Kind == "ssubscribe" {
		l.mu.Lock()
		if !l.live && l.on != nil {
			l.live = true
			l.guard.end(nil)
		}
		l.mu.Unlock()
		l.tell(rediscore.Event{Kind: rediscore.Subscribed})
	}
}

// ending is called when a subscription has failed or ended. rueidis follows redirections, and would
// subscribe again after a lost connection, which ending prevents. It ends a subscription that the
// server still has, over the connection that this is on. It cannot wait for the answer, because
// rueidis reads no more until it has returned.
func (l *listening) ending(err error, wire rueidis.CommandClient) error {
	if _, reply := rueidis.IsRedisErr(err); reply {
		return err
	}
	if l.ctx.Err() == nil {
		if err == nil {
			err = errEnded
		}
		l.lose(err)
		return errEnded
	}
	l.leaving.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), unsubscribeLimit)
		defer cancel()
		wire.Do(ctx, l.unsubscribe())
	})
	return err
}
