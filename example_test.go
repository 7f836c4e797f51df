package dlock_test

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestIndexerStopsWhenItsLockIsLost(t *testing.T) { testIndexerStopsWhenItsLockIsLost(t) }

func ExampleClient_Do() {
	locks := dlock.New(memory.New())
	defer locks.Close()

	err := locks.Do(context.Background(), "invoice:7", func(ctx context.Context, lease *dlock.Lease) error {
		// ctx ends if the lock is lost: pass it to everything that is called here.
		fmt.Println("working on", lease.Key())
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// working on invoice:7
	// <nil>
}

func ExampleClient_Acquire() {
	locks := dlock.New(memory.New())
	defer locks.Close()

	// ctx limits the wait, not the lease.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lease, err := locks.Acquire(ctx, "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", lease.Err() == nil)

	// nil means that nobody else held the lock meanwhile.
	fmt.Println("released:", lease.Release())
	// Output:
	// held: true
	// released: <nil>
}

// Transfers lock both accounts. They cannot wait for each other for ever, though they name them in different
// orders.
func ExampleClient_DoAll() {
	locks := dlock.New(memory.New())
	defer locks.Close()
	ctx := context.Background()
	balance := map[string]int{"account:4": 100, "account:7": 100}

	var transfers sync.WaitGroup
	for range 20 {
		transfers.Go(func() {
			err := locks.DoAll(ctx, []string{"account:7", "account:4"}, func(ctx context.Context, leases *dlock.Leases) error {
				balance["account:7"] -= 3
				balance["account:4"] += 3
				return ctx.Err()
			})
			if err != nil {
				fmt.Println(err)
			}
		})
		transfers.Go(func() {
			leases, err := locks.AcquireAll(ctx, "account:4", "account:7")
			if err != nil {
				fmt.Println(err)
				return
			}
			balance["account:4"] -= 2
			balance["account:7"] += 2
			if err := leases.Release(); err != nil {
				fmt.Println(err)
			}
		})
	}
	transfers.Wait()
	fmt.Println(balance)
	// Output:
	// map[account:4:120 account:7:80]
}

func ExampleClient_TryAcquire() {
	store := memory.New()
	other := dlock.New(store, dlock.WithOwner("worker 3"))
	defer other.Close()
	lease, err := other.Acquire(context.Background(), "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release()

	locks := dlock.New(store)
	defer locks.Close()
	_, err = locks.TryAcquire(context.Background(), "invoice:7")
	if held, ok := errors.AsType[*dlock.HeldError](err); ok {
		fmt.Printf("%s is held by %s\n", held.Key, held.Owner)
		fmt.Println("for half a minute at most:", held.Remaining <= dlock.DefaultTTL)
	}
	// Output:
	// invoice:7 is held by worker 3
	// for half a minute at most: true
}

func ExampleClient_With() {
	locks := dlock.New(memory.New(), dlock.WithOwner("worker 3"))
	defer locks.Close() // also closes those made by With

	// For work that waits at most 10 ms for its lock.
	hasty := locks.With(dlock.WithMaxWait(10 * time.Millisecond))

	lease, err := locks.Acquire(context.Background(), "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release()
	_, err = hasty.Acquire(context.Background(), "invoice:7")
	fmt.Println(errors.Is(err, dlock.ErrHeld), errors.Is(err, context.DeadlineExceeded))
	// Output: true false
}

func ExampleClient_Inspect() {
	locks := dlock.New(memory.New(), dlock.WithOwner("worker 3"))
	defer locks.Close()
	ctx := context.Background()

	lease, err := locks.Acquire(ctx, "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	holder, err := locks.Inspect(ctx, "invoice:7")
	fmt.Println(holder.Held, holder.Owner, err)

	lease.Release()
	holder, err = locks.Inspect(ctx, "invoice:7")
	fmt.Println(holder.Held, err)
	// Output:
	// true worker 3 <nil>
	// false <nil>
}

func ExampleLease_Context() {
	locks := dlock.New(memory.New())
	defer locks.Close()

	lease, err := locks.Acquire(context.Background(), "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := lease.Context(context.Background())
	fmt.Println(ctx.Err())

	lease.Release()
	fmt.Println(ctx.Err())
	fmt.Println(context.Cause(ctx)) // after a loss it matches ErrLost
	// Output:
	// <nil>
	// context canceled
	// lease released
}

func ExampleLease_Detach() {
	locks := dlock.New(memory.New())
	defer locks.Close()

	lease, err := locks.Acquire(context.Background(), "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	detached, err := lease.Detach()
	if err != nil {
		fmt.Println(err)
		return
	}
	// The lease has ended, and the lock stays held until the deadline: a taker can adopt it.
	// MarshalText returns a text to send.
	text, err := detached.MarshalText()
	fmt.Println(errors.Is(lease.Err(), dlock.ErrReleased), len(text) > 0, err)
	// Output: true true <nil>
}

func ExampleClient_Adopt() {
	store := memory.New()
	sender := dlock.New(store)
	defer sender.Close()
	lease, err := sender.Acquire(context.Background(), "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fence := lease.Fence()
	detached, err := lease.Detach()
	if err != nil {
		fmt.Println(err)
		return
	}

	// In the process that continues the work:
	taker := dlock.New(store)
	defer taker.Close()
	lease, err = taker.Adopt(context.Background(), detached)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lease.Key(), "with a higher fence:", lease.Fence() > fence)
	fmt.Println(lease.Release())
	// Output:
	// invoice:7 with a higher fence: true
	// <nil>
}

// An operator frees a lock whose holder hangs. Break releases only the holder that Inspect
// has shown: if another has taken the lock since, it keeps it.
//
// First make sure that the old holder has stopped, or that its writes are fenced. It is not
// notified, and continues until its next renewal, or until its deadline.
func ExampleClient_Break() {
	store := memory.New() // stands for a server that all processes reach
	service := dlock.New(store, dlock.WithOwner("web-7/billing[4711]"))
	defer service.Close()
	ctx := context.Background()
	stuck, err := service.Acquire(ctx, "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}

	operator := dlock.New(store) // in a tool, with the same store and prefix as the service
	defer operator.Close()
	status, err := operator.Inspect(ctx, "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", status.Held, "by", status.Owner, "and waiting:", status.Waiting)
	// Here a person looks at web-7, status.Started and status.Remaining, and decides.
	fmt.Println("break:", operator.Break(ctx, status))
	err = operator.Break(ctx, status)
	fmt.Println("again:", errors.Is(err, dlock.ErrReleased))

	fmt.Println("the old holder believes in its lease:", stuck.Err() == nil)
	err = stuck.Renew(ctx) // as the Client does in the background
	fmt.Println("until its next renewal:", errors.Is(err, dlock.ErrLost))
	// Output:
	// held: true by web-7/billing[4711] and waiting: 0
	// break: <nil>
	// again: true
	// the old holder believes in its lease: true
	// until its next renewal: true
}

// A function deep in the call tree finds the lease, and its fence, in its ctx.
//
// A goroutine that outlives the work gets the ctx from before Do. The ctx of the work carries
// the lease, even through context.WithoutCancel: with it, an Acquire of the same key fails
// with ErrNested while the lease is held.
func ExampleLeaseFromContext() {
	locks := dlock.New(memory.New(), dlock.WithFence(true))
	defer locks.Close()
	ctx := context.Background()
	// saveBalance is deep in the call tree. It knows only the name of the key, and finds the
	// fence in ctx. It writes nothing if the caller does not hold the lock.
	saveBalance := func(ctx context.Context, account string, balance int) error {
		lease, held := dlock.LeaseFromContext(ctx, "account:"+account)
		if !held {
			return errors.New("the caller does not hold the lock of the account")
		}
		fmt.Printf("UPDATE … SET balance = %d, fence = $1 WHERE … AND fence <= $1 -- with a fence: %t\n", balance, lease.Fence() > 0)
		return nil
	}
	// deposit, between Do and the write, only passes ctx on, as it does anyway.
	deposit := func(ctx context.Context, account string, amount int) error {
		return saveBalance(ctx, account, 100+amount)
	}
	var later sync.WaitGroup
	var laterErr error

	err := locks.Do(ctx, "account:4711", func(work context.Context, _ *dlock.Lease) error {
		later.Go(func() {
			// It waits until this work has released the lock.
			laterErr = locks.Do(ctx, "account:4711", func(context.Context, *dlock.Lease) error { return nil })
		})
		_, err := locks.Acquire(context.WithoutCancel(work), "account:4711")
		fmt.Println("with the ctx of the work:", errors.Is(err, dlock.ErrNested))
		return deposit(work, "4711", 20)
	})
	fmt.Println("deposit:", err)
	later.Wait()
	fmt.Println("afterwards:", laterErr)
	fmt.Println("without the lock:", deposit(ctx, "4711", 20))
	// Output:
	// with the ctx of the work: true
	// UPDATE … SET balance = 120, fence = $1 WHERE … AND fence <= $1 -- with a fence: true
	// deposit: <nil>
	// afterwards: <nil>
	// without the lock: the caller does not hold the lock of the account
}

// This service counts waits and overruns: work that went on after its lease was lost.
func ExampleWithObserver() {
	locks := dlock.New(memory.New(), dlock.WithObserver(&dlock.Observer{
		AcquireDone: func(ctx context.Context, i dlock.AcquireDoneInfo) context.Context {
			fmt.Printf("%s %s: granted %v, contended %v\n", i.Op, i.Key, i.Err == nil, i.Contended)
			return ctx
		},
		LeaseDone: func(_ context.Context, i dlock.LeaseDoneInfo) {
			fmt.Println(i.Key, i.End)
		},
		ReleaseDone: func(_ context.Context, i dlock.ReleaseDoneInfo) {
			fmt.Println("overrun:", i.Overrun)
		},
	}))
	defer locks.Close()
	ctx := context.Background()
	_ = locks.Do(ctx, "index", func(context.Context, *dlock.Lease) error {
		_, err := locks.TryAcquire(ctx, "index")
		return err
	})
	// Output:
	// acquire index: granted true, contended false
	// try index: granted false, contended true
	// index released
	// overrun: 0s
}

// This service logs lost leases. Its keys are personal data: only their first part is logged.
func ExampleNewLogObserver() {
	handler := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch a.Key {
		case "key":
			class, _, _ := strings.Cut(a.Value.String(), ":")
			a.Value = slog.StringValue(class)
		case slog.TimeKey, "at", "held", "fence", "overrun", "took", "end", "error": // they may differ each time
			return slog.Attr{}
		}
		return a
	}})
	store := memory.New()
	locks := dlock.New(store, dlock.WithTTL(100*time.Millisecond), dlock.WithObserver(dlock.NewLogObserver(slog.New(handler))))
	_ = locks.Do(context.Background(), "user:1234", func(ctx context.Context, _ *dlock.Lease) error {
		store.Steal("user:1234", time.Hour) // another has it now
		<-ctx.Done()
		time.Sleep(100 * time.Millisecond) // the work goes on for more than a moment
		return ctx.Err()
	})
	_ = locks.Close()
	// Unordered output:
	// level=WARN msg="dlock: lease lost" key=user
	// level=WARN msg="dlock: work went on after its lease was lost" owed=false key=user
}

// A service looks at its start whether it can use the store, since a wrong password is otherwise
// found by the first request. Inspect changes nothing, and needs no more rights than a lock does.
func Example_start() {
	store := memory.New()
	locks := dlock.New(store)
	defer locks.Close()
	// usable reports why a service must not start: the store refuses its calls. A store that is away
	// may come back, so that is no reason.
	usable := func() error {
		_, err := locks.Inspect(context.Background(), "start") // any key
		if errors.Is(err, dlock.ErrUnavailable) {
			return nil
		}
		return err
	}

	fmt.Println(usable())
	store.Fail(&dlock.NoEffectError{Err: errors.New("WRONGPASS invalid username-password pair")}) // as a backend does
	fmt.Println(usable())
	store.Fail(errors.New("connection refused"))
	fmt.Println(usable())
	// Output:
	// <nil>
	// dlock: inspect "start": the store refused: WRONGPASS invalid username-password pair
	// <nil>
}

// Publish the figures of a Client with expvar. Alert if Lost or RenewalsFailed grow, if
// ReleasesOwed stays high, or if ReleasesDropped is above 0.
func ExampleClient_Stats() {
	locks := dlock.New(memory.New())
	defer locks.Close()
	// One entry for each Client. Any HTTP server that uses http.DefaultServeMux serves them under
	// /debug/vars. Each request for them calls Stats.
	lockStats := expvar.NewMap("dlock")
	lockStats.Set("orders", expvar.Func(func() any { return locks.Stats() }))

	lease, err := locks.Acquire(context.Background(), "order:1234")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lockStats.Get("orders"))
	lease.Release()
	fmt.Println("leases after the release:", locks.Stats().Leases)
	// Output:
	// {"Leases":1,"Waiters":0,"StoreWaiters":0,"ReleasesOwed":0,"ReleasesDropped":0,"NestedWaits":0,"WaitsWithoutInbox":0,"Lost":0,"RenewalsFailed":0,"EventsDropped":0}
	// leases after the release: 0
}

// A form is sent twice: by a double click, and again when the first request has long been answered. The lock
// keeps requests apart that come at the same time. The number of the form, stored with the result,
// recognizes those that come later.
func Example_form() {
	locks := dlock.New(memory.New(), dlock.WithMaxWait(2*time.Second))
	defer locks.Close()
	ctx := context.Background()
	results := make(map[string]string) // stands for a table whose primary key is the number of the form
	// submit gets the number that the form was shown with, in a hidden field.
	submit := func(ctx context.Context, id string) (result string, err error) {
		err = locks.Do(ctx, "form:"+id, func(ctx context.Context, _ *dlock.Lease) error {
			if result = results[id]; result != "" {
				return nil // sent before: the answer is the same
			}
			fmt.Println("booking")
			result = "seat 12"
			results[id] = result // in the transaction that books
			return ctx.Err()
		})
		return result, err
	}
	var clicks sync.WaitGroup
	for range 2 {
		clicks.Go(func() { _, _ = submit(ctx, "f81d4fae") })
	}
	clicks.Wait()
	fmt.Println(submit(ctx, "f81d4fae"))

	// Where nothing can store a result, as for a mail, MinHold keeps the key for a minute after the grant.
	once := locks.With(dlock.WithMinHold(time.Minute), dlock.WithMaxWait(0))
	for range 2 {
		err := once.Do(ctx, "mail:f81d4fae", func(context.Context, *dlock.Lease) error {
			fmt.Println("sending the mail")
			return nil
		})
		fmt.Println("sent before:", errors.Is(err, dlock.ErrHeld))
	}
	// Output:
	// booking
	// seat 12 <nil>
	// sending the mail
	// sent before: false
	// sent before: true
}

// Many requests need a value that takes long to compute. One computes it, and the others wait for its result:
// each looks into the cache a second time when it has the lock.
func Example_stampede() {
	locks := dlock.New(memory.New(), dlock.WithLocalTurns(8))
	defer locks.Close()
	var cache sync.Map // stands for a cache that all processes share
	price := func(ctx context.Context, item string) (value any, err error) {
		if value, ok := cache.Load(item); ok {
			return value, nil
		}
		err = locks.Do(ctx, "price:"+item, func(ctx context.Context, _ *dlock.Lease) error {
			if cached, ok := cache.Load(item); ok { // computed while this caller waited
				value = cached
				return nil
			}
			fmt.Println("computing")
			value = 42
			cache.Store(item, value)
			return ctx.Err()
		})
		return value, err
	}
	var requests sync.WaitGroup
	for range 20 {
		requests.Go(func() {
			if value, err := price(context.Background(), "tea"); value != 42 || err != nil {
				fmt.Println(value, err)
			}
		})
	}
	requests.Wait()
	// Output: computing
}
