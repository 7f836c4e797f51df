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
	locks   *dlock.Client
	charged *sync.Map // stands for the database that the instances share
}

// statusClientClosedRequest is what nginx logs when the client has gone.
const statusClientClosedRequest = 499

func (c *checkout) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	err := c.locks.Do(r.Context(), "order:"+id, func(ctx context.Context, _ *dlock.Lease) error {
		return c.charge(ctx, id)
	})
	switch {
	case err == nil:
		w.WriteHeader(http.StatusOK)
	case r.Context().Err() != nil: // first: the client may have gone while the order was held
		w.WriteHeader(statusClientClosedRequest)
	case errors.Is(err, dlock.ErrHeld):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the order is being handled", http.StatusConflict)
	case errors.Is(err, dlock.ErrUnavailable): // the store went away during the wait
		w.Header().Set("Retry-After", "5")
		http.Error(w, "nobody knows whether the order is being handled", http.StatusServiceUnavailable)
	default: // the store failed at once, the lease was lost, the charge failed
		w.Header().Set("Retry-After", "5")
		http.Error(w, "try again", http.StatusServiceUnavailable)
	}
}

// charge charges an order, unless it is charged already. ctx ends when the client leaves or
// the lock is lost.
func (c *checkout) charge(ctx context.Context, id string) error {
	if _, done := c.charged.Load(id); done {
		return nil
	}
	select {
	case <-time.After(time.Millisecond): // stands for a call of the payment service with ctx
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	fmt.Println("charged order", id)
	c.charged.Store(id, true)
	return nil
}

// An HTTP handler must not handle an order twice. If another instance holds the order, a
// request waits for at most 2 s, and is then answered with 409 Conflict. If the store fails at
// once, the answer is 503 Service Unavailable. So it is if the store goes away during the wait
// and the lease of the last known holder must have ended since.
func Example_http() {
	store := memory.New()
	locks := dlock.New(store, dlock.WithMaxWait(2*time.Second))
	defer locks.Close()
	patient := &checkout{locks, new(sync.Map)}
	// The second one waits for a shorter time, so that this example runs quickly.
	hasty := &checkout{locks.With(dlock.WithMaxWait(10 * time.Millisecond)), patient.charged}

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

	store.Fail(errors.New("connection refused"))
	fmt.Println(post(ctx, patient, "3"), "when the store does not answer")
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
	fmt.Println(post(ctx, &checkout{polling, patient.charged}, "4"), "when the store goes away during the wait")
	store.Fail(nil)
	// Output:
	// charged order 1
	// 200
	// 200 and not charged again
	// 409 (again after 1 s) while another handles it
	// 499 when the client goes
	// charged order 2
	// 200 when the other is done in time
	// 503 (again after 5 s) when the store does not answer
	// 503 (again after 5 s) when the store goes away during the wait
}
