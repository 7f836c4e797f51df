package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// A checkout charges orders. Many instances serve the same orders, and each order is
// charged once.
type checkout struct {
	locks  *dlock.Client
	orders *orders
	charge func(ctx context.Context, id string) error // calls the payment service, which gets id as the idempotency key
}

// statusClientClosedRequest is what nginx logs when the client has gone.
const statusClientClosedRequest = 499

func (c *checkout) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, done := r.PathValue("id"), false
	err := c.locks.Do(r.Context(), "order:"+id, func(ctx context.Context, lease *dlock.Lease) error {
		err := c.handle(ctx, id, lease.Fence())
		done = err == nil
		return err
	})
	switch {
	case done: // first, even if err is ErrLost: the database has accepted the write
		w.WriteHeader(http.StatusOK)
	case r.Context().Err() != nil: // the client may have gone while the order was held
		w.WriteHeader(statusClientClosedRequest)
	case errors.Is(err, dlock.ErrHeld), errors.Is(err, errOvertaken):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the order is being handled", http.StatusConflict)
	case errors.Is(err, dlock.ErrUnavailable): // the store did not answer, or went away during the wait
		w.Header().Set("Retry-After", "5")
		http.Error(w, "nobody knows whether the order is being handled", http.StatusServiceUnavailable)
	default: // the store refused (see your log), the lease was lost before the write, the charge failed
		w.Header().Set("Retry-After", "5")
		http.Error(w, "try again", http.StatusServiceUnavailable)
	}
}

// handle charges an order, unless that is done. ctx ends when the client leaves or the lock is
// lost. The error is nil if and only if the database says that the order is charged.
func (c *checkout) handle(ctx context.Context, id string, fence int64) error {
	if c.orders.charged(id) {
		return nil
	}
	if err := c.charge(ctx, id); err != nil {
		return err
	}
	return c.orders.setCharged(id, fence)
}

var errOvertaken = errors.New("a later holder of the lock has been here")

// orders stands for the database that the instances share.
type orders struct {
	mu    sync.Mutex
	fence map[string]int64 // of those that are charged
}

func (o *orders) charged(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.fence[id] > 0
}

// setCharged is, in SQL:
//
//	UPDATE orders SET charged = true, fence = $2 WHERE id = $1 AND fence < $2
//
// A holder writes once here. If it writes more often, see the example Fence.
func (o *orders) setCharged(id string, fence int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fence[id] >= fence {
		return errOvertaken
	}
	o.fence[id] = fence
	return nil
}

// An HTTP handler must not handle an order twice. If another instance holds the order, a
// request waits for at most 2 s, and is then answered with 409 Conflict. If the store does not
// answer, or refuses, the answer is 503 Service Unavailable. So it is if the store goes away during
// the wait and the lease of the last known holder must have ended since.
//
// If the lock is lost, the answer of the database counts, since each write carries a fence. A
// write that it has accepted is done, and the answer is 200, although Do returns ErrLost: a
// second try would handle the order twice. If it has refused the write, another instance
// handles the order.
func Example_http() {
	store := memory.New()
	locks := dlock.New(store, dlock.WithMaxWait(2*time.Second), dlock.WithFence(true))
	defer locks.Close()
	table := &orders{fence: make(map[string]int64)}
	charge := func(_ context.Context, id string) error {
		fmt.Println("charged order", id)
		return nil
	}
	patient := &checkout{locks, table, charge}
	// The second one waits for a shorter time, so that this example runs quickly.
	hasty := &checkout{locks.With(dlock.WithMaxWait(10 * time.Millisecond)), table, charge}

	post := func(ctx context.Context, c *checkout, id string) string {
		mux := http.NewServeMux()
		mux.Handle("POST /orders/{id}", c)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders/"+id, nil))
		if again := w.Header().Get("Retry-After"); again != "" {
			return fmt.Sprintf("%d (again after %s s)", w.Code, again)
		}
		return fmt.Sprint(w.Code)
	}
	ctx := context.Background()
	fmt.Println(post(ctx, patient, "1"))
	fmt.Println(post(ctx, patient, "1"), "and not charged again")

	lease, err := locks.Acquire(ctx, "order:2") // as another instance would
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(post(ctx, hasty, "2"), "while another handles it")

	gone, leave := context.WithCancel(ctx)
	time.AfterFunc(10*time.Millisecond, leave)
	fmt.Println(post(gone, patient, "2"), "when the client goes")

	time.AfterFunc(10*time.Millisecond, func() { lease.Release() })
	fmt.Println(post(ctx, patient, "2"), "when the other is done in time")

	losing := &checkout{locks, table, func(ctx context.Context, id string) error {
		store.Expire("order:" + id) // as if this instance had been paused for longer than its TTL
		return charge(ctx, id)
	}}
	fmt.Println(post(ctx, losing, "5"), "when the lock is lost, and the database accepts the write")
	overtaken := &checkout{locks, table, func(_ context.Context, id string) error {
		store.Expire("order:" + id)
		fmt.Println(post(ctx, patient, id), "for another instance")
		return nil
	}}
	fmt.Println(post(ctx, overtaken, "6"), "when the database refuses the write")

	store.Fail(errors.New("connection refused"))
	fmt.Println(post(ctx, patient, "3"), "when the store does not answer")
	store.Fail(&dlock.NoEffectError{Err: errors.New("NOPERM this user has no permissions")}) // as a backend does
	fmt.Println(post(ctx, patient, "3"), "when the store refuses")
	store.Fail(nil)

	// The store goes away during the wait, after its first answer.
	_, err = locks.With(dlock.WithTTL(500*time.Millisecond), dlock.WithRenewal(false)).Acquire(ctx, "order:4")
	if err != nil {
		fmt.Println(err)
		return
	}
	goesAway := func(int) time.Duration {
		store.Fail(errors.New("connection refused"))
		return 10 * time.Millisecond
	}
	polling := dlock.New(struct{ dlock.Locker }{store}, // without the queue of the store
		dlock.WithMaxWait(time.Second), dlock.WithBackoff(goesAway))
	defer polling.Close()
	fmt.Println(post(ctx, &checkout{polling, table, charge}, "4"), "when the store goes away during the wait")
	store.Fail(nil)
	// Output:
	// charged order 1
	// 200
	// 200 and not charged again
	// 409 (again after 1 s) while another handles it
	// 499 when the client goes
	// charged order 2
	// 200 when the other is done in time
	// charged order 5
	// 200 when the lock is lost, and the database accepts the write
	// charged order 6
	// 200 for another instance
	// 409 (again after 1 s) when the database refuses the write
	// 503 (again after 5 s) when the store does not answer
	// 503 (again after 5 s) when the store refuses
	// 503 (again after 5 s) when the store goes away during the wait
}
