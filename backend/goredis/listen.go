package goredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/backend/internal/rediserr"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// Listen implements [rediscore.Conn]. All subscriptions of a conn on a master share a connection,
// which is closed with the last of them.
func (c conn) Listen(ctx context.Context, channel string, sharded bool, on func(rediscore.Event)) error {
	err := c.listen(ctx, channel, sharded, on)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.learn(ctx, err)
	return c.unlessClosed(ctx, err)
}

func (c conn) listen(ctx context.Context, channel string, sharded bool, on func(rediscore.Event)) error {
	if err := c.hidden.refusal(ctx); err != nil {
		return err
	}
	// The client of the master: a cluster client with ReadOnly would subscribe on a replica, whose
	// subscribers the master does not count.
	var master *redis.Client
	if c.cluster != nil {
		var err error
		if master, err = c.cluster.MasterForKey(ctx, channel); err != nil {
			return err
		}
	}
	l := c.listeners.join(c.client, master)
	defer c.listeners.leave(l)
	s := &subscription{channel: channel, on: on, ended: make(chan error, 1)}
	kind := "subscribe"
	if sharded {
		kind = "ssubscribe"
	}
	l.put(request{kind, s})
	defer l.unsubscribe(kind, s)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-s.ended:
		return err
	case <-l.ended:
		return l.err
	}
}

// learn makes the client refresh its table of slots if the error of a subscription says that a
// slot has moved, or that a master does not answer. go-redis does not do so by itself.
func (c conn) learn(ctx context.Context, err error) {
	c.slots.failed(err)
	if cluster, ok := c.inside.(interface{ ReloadState(context.Context) }); ok && rediscore.IsRedirection(err) {
		cluster.ReloadState(ctx)
	}
}

// A subscription is one Listen.
type subscription struct {
	channel string
	ended   chan error // of capacity 1

	mu sync.Mutex
	on func(rediscore.Event) // nil when Listen has returned
}

// tell calls on, unless Listen has returned.
func (s *subscription) tell(e rediscore.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on != nil {
		s.on(e)
	}
}

func (s *subscription) end(err error) {
	select {
	case s.ended <- err:
	default:
	}
}

// listeners are the connections of a conn for subscriptions, one for each master. The only one of
// a client that is not for a cluster is at nil.
type listeners struct {
	mu  sync.Mutex
	all map[*redis.Client]*listener
}

func (ls *listeners) join(client redis.UniversalClient, master *redis.Client) *listener {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.all[master]
	if l == nil || l.ctx.Err() != nil {
		l = newListener(client, master)
		ls.all[master] = l
	}
	l.users++
	return l
}

// leave closes the connection with its last user.
func (ls *listeners) leave(l *listener) {
	ls.mu.Lock()
	l.users--
	last := l.users == 0
	if last && ls.all[l.master] == l {
		delete(ls.all, l.master)
	}
	ls.mu.Unlock()
	if last {
		l.cancel()
		<-l.closed
	}
}

// A listener is a connection for subscriptions. go-redis would connect again by itself when the
// connection is lost, unnoticed, and would then subscribe to all channels in one command, which a
// cluster refuses if they are in several slots. So the listener ends at the first sign of that.
//
// Each answer of the server is that to the oldest request, so a listener knows which subscription
// was refused. Only messages, and the end of a subscription whose slot moves, come by themselves.
type listener struct {
	pubsub *redis.PubSub
	master *redis.Client
	users  int // guarded by the mutex of listeners
	ctx    context.Context
	cancel context.CancelFunc
	closed chan struct{} // when nothing is left of it

	ended chan struct{}
	err   error         // why it has ended
	wake  chan struct{} // of capacity 1: there is something to write

	mu            sync.Mutex
	subscriptions map[string]*subscription // by channel
	unwritten     []request
	unanswered    []request
}

// A request is a command of a listener.
type request struct {
	kind         string // its name in lower case
	subscription *subscription
}

func newListener(client redis.UniversalClient, master *redis.Client) *listener {
	l := &listener{
		master:        master,
		closed:        make(chan struct{}),
		ended:         make(chan struct{}),
		wake:          make(chan struct{}, 1),
		subscriptions: make(map[string]*subscription),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if master != nil {
		client = master
	}
	l.pubsub = client.Subscribe(l.ctx)
	go l.run()
	return l
}

// put has a request written soon.
func (l *listener) put(r request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.kind == "subscribe" || r.kind == "ssubscribe" {
		l.subscriptions[r.subscription.channel] = r.subscription
	}
	l.unwritten = append(l.unwritten, r)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// unsubscribe ends a subscription of the given kind. Its function is not called any more.
func (l *listener) unsubscribe(kind string, s *subscription) {
	s.mu.Lock()
	s.on = nil
	s.mu.Unlock()
	l.mu.Lock()
	current := l.subscriptions[s.channel] == s
	if current {
		delete(l.subscriptions, s.channel)
	}
	l.mu.Unlock()
	if current {
		l.put(request{map[string]string{"subscribe": "unsubscribe", "ssubscribe": "sunsubscribe"}[kind], s})
	}
}

// run writes requests, and reads from when there is a connection.
func (l *listener) run() {
	defer close(l.closed)
	defer l.cancel()
	var reading sync.WaitGroup
	failed := make(chan error, 1)
	begin := sync.OnceFunc(func() { reading.Go(func() { failed <- rediserr.Call(l.receive) }) })
	var err error
	for err == nil {
		select {
		case <-l.ctx.Done():
			err = l.ctx.Err()
		case err = <-failed:
		case <-l.wake:
			if err = rediserr.Call(l.write); err == nil {
				begin()
			}
		}
	}
	l.err = err
	close(l.ended)
	l.cancel()
	_ = rediserr.Call(l.pubsub.Close)
	reading.Wait()
}

func (l *listener) write() error {
	l.mu.Lock()
	requests := l.unwritten
	l.unwritten = nil
	l.unanswered = append(l.unanswered, requests...)
	l.mu.Unlock()
	for _, r := range requests {
		var err error
		switch r.kind {
		case "subscribe":
			err = l.pubsub.Subscribe(l.ctx, r.subscription.channel)
		case "ssubscribe":
			err = l.pubsub.SSubscribe(l.ctx, r.subscription.channel)
		case "unsubscribe":
			err = l.pubsub.Unsubscribe(l.ctx, r.subscription.channel)
		case "sunsubscribe":
			err = l.pubsub.SUnsubscribe(l.ctx, r.subscription.channel)
		case "ping":
			err = l.pubsub.Ping(l.ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// receive reads until the connection is lost or does not answer.
func (l *listener) receive() error {
	for silent := false; ; {
		msg, err := l.pubsub.ReceiveTimeout(l.ctx, rediscore.ListenPeriod)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() && !silent {
			silent = true
			l.put(request{kind: "ping"})
			continue
		}
		if silent = false; err != nil {
			err = l.refused(err)
		} else {
			err = l.take(msg)
		}
		if err != nil {
			return err
		}
	}
}

var errReconnected = errors.New("go-redis has connected again")

// refused ends the subscription that an error reply is for. It returns any other error, and those
// after which go-redis connects again or that show that it has.
func (l *listener) refused(err error) error {
	var reply redis.Error
	if !errors.As(err, &reply) || redis.HasErrorPrefix(err, "READONLY") || redis.HasErrorPrefix(err, "CROSSSLOT") {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.unanswered) == 0 || l.unanswered[0].subscription == nil {
		return err
	}
	s := l.unanswered[0].subscription
	l.unanswered = l.unanswered[1:]
	if l.subscriptions[s.channel] == s {
		delete(l.subscriptions, s.channel)
	}
	s.end(err)
	return nil
}

func (l *listener) take(msg any) error {
	switch m := msg.(type) {
	case *redis.Message:
		l.mu.Lock()
		s := l.subscriptions[m.Channel]
		l.mu.Unlock()
		if s != nil {
			s.tell(rediscore.Event{Kind: rediscore.Message, Payload: m.Payload})
		}
	case *redis.Pong:
		if _, ok := l.answered("ping", ""); !ok {
			return errReconnected
		}
	case *redis.Subscription:
		s, ok := l.answered(m.Kind, m.Channel)
		switch unsubscribed := m.Kind == "unsubscribe" || m.Kind == "sunsubscribe"; {
		case ok && !unsubscribed:
			s.tell(rediscore.Event{Kind: rediscore.Subscribed})
		case !ok && unsubscribed:
			l.drop(m.Channel, fmt.Errorf("%s by the server", m.Kind))
		case !ok:
			return errReconnected
		}
	}
	return nil
}

// answered takes the oldest request if it is of a given kind and for a given channel.
func (l *listener) answered(kind, channel string) (s *subscription, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.unanswered) == 0 {
		return nil, false
	}
	r := l.unanswered[0]
	if r.kind != kind || r.subscription != nil && r.subscription.channel != channel {
		return nil, false
	}
	l.unanswered = l.unanswered[1:]
	return r.subscription, true
}

// drop ends a subscription that the server has ended.
func (l *listener) drop(channel string, err error) {
	l.mu.Lock()
	s := l.subscriptions[channel]
	delete(l.subscriptions, channel)
	l.mu.Unlock()
	if s != nil {
		s.end(err)
	}
}
