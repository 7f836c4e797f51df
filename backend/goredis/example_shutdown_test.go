package goredis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// A webService answers requests that need a lock.
type webService struct {
	rdb   *redis.Client
	store *rediscore.Locker
	locks *dlock.Client
	http  *http.Server
}

func newWebService(redisAddr string, working chan<- string) *webService {
	s := new(webService)
	s.rdb = redis.NewClient(&redis.Options{Addr: redisAddr, ContextTimeoutEnabled: true})
	s.store = goredis.New(s.rdb, goredis.WithPrefix("shop:"))
	s.locks = dlock.New(s.store, dlock.WithOwner(dlock.HostOwner()), dlock.WithMaxWait(2*time.Second))
	s.http = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := s.locks.Do(r.Context(), r.URL.Path, func(ctx context.Context, _ *dlock.Lease) error {
			working <- r.URL.Path
			select {
			case <-time.After(20 * time.Millisecond): // the work
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err != nil { // the example Http of package dlock distinguishes the errors
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})}
	return s
}

// stop ends the service after SIGTERM. ctx limits the first two steps.
//
//  1. The HTTP server takes no more requests, and waits for those that are under way, also
//     for those that wait for a lock: for at most MaxWait, which is shorter than ctx.
//  2. The Client waits for everybody else who holds a lock, such as background work. If ctx
//     ends first, the contexts of that work end with ErrClosed. Then the Client sends the
//     releases that it owes, for at most 5 s more.
//  3. The backend ends its subscription. It needs the driver for that.
//  4. The driver closes its connections.
func (s *webService) stop(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	err = errors.Join(err, s.locks.Shutdown(ctx))
	err = errors.Join(err, s.store.Close())
	return errors.Join(err, s.rdb.Close())
}

// A web service that stops after SIGTERM: requests under way are answered, background work
// ends, and no lock stays behind. In a program, ctx ends with the signal:
//
//	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
//	defer stop()
func Example_shutdown() {
	redisServer, err := miniredis.Run() // stands for Redis
	if err != nil {
		fmt.Println(err)
		return
	}
	defer redisServer.Close()
	working := make(chan string, 2)
	s := newWebService(redisServer.Addr(), working)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go s.http.Serve(listener)
	ctx, sigterm := context.WithCancel(context.Background())

	// Background work, which stops by itself after SIGTERM.
	go s.locks.Do(context.WithoutCancel(ctx), "cleanup", func(work context.Context, _ *dlock.Lease) error {
		working <- "cleanup"
		<-ctx.Done()
		fmt.Println("the background work stops, its lease:", context.Cause(work))
		return nil
	})
	<-working
	status := make(chan string)
	go func() {
		r, err := http.Get("http://" + listener.Addr().String() + "/orders/1")
		if err != nil {
			status <- err.Error()
			return
		}
		defer r.Body.Close()
		status <- r.Status
	}()
	<-working // the request is under way

	sigterm()
	<-ctx.Done()
	limited, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = s.stop(limited)
	fmt.Println("the request that was under way:", <-status)
	fmt.Println("stopped:", err)
	fmt.Println("locks left behind:", redisServer.Exists("shop:/orders/1"), redisServer.Exists("shop:cleanup"))
	_, err = s.locks.TryAcquire(context.Background(), "/orders/1")
	fmt.Println("closed for good:", errors.Is(err, dlock.ErrClosed))
	// Output:
	// the background work stops, its lease: <nil>
	// the request that was under way: 200 OK
	// stopped: <nil>
	// locks left behind: false false
	// closed for good: true
}
