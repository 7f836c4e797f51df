//go:build unix

package postgres_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/postgres"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

// A handover takes one round trip: half of it for the release, half for the message to the next waiter. So it needs no answer to
// the release, and nothing more from the waiter. 32 waiters are served in their order.
func TestHandoverIsOneRoundTrip(t *testing.T) {
	server := fresh(t)
	there, back := proxy(t, server), proxy(t, server)
	holder, waiter := open(t, there.Addr()), open(t, back.Addr())
	takes(t, holder, "key", "0")
	const n = 32
	granted := make(chan string, n)
	for i := 1; i <= n; i++ {
		token := fmt.Sprint(i)
		go func() {
			a, err := waiter.Acquire(t.Context(), "key", token, time.Minute)
			granted <- fmt.Sprintln(token, a.Acquired, err)
		}()
		awaitQueue(t, holder, i, "")
	}
	for i := range n {
		back.Block(faultproxy.ToStore)
		there.Block(faultproxy.ToClient)
		released := make(chan error, 1)
		go func() {
			_, err := holder.Release(t.Context(), "key", fmt.Sprint(i))
			released <- err
		}()
		select {
		case got := <-granted:
			require.Equal(t, fmt.Sprintln(i+1, true, nil), got)
		case <-time.After(30 * time.Second):
			t.Fatalf("waiter %d needs another round trip", i+1)
		}
		require.Empty(t, released)
		require.NoError(t, there.Heal())
		require.NoError(t, back.Heal())
		require.NoError(t, <-released)
	}
}

// 8 or 32 processes want a lock again and again. If all others wait when it is released, they have it in turns.
func TestFairness(t *testing.T) {
	for _, n := range []int{8, 32} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			server := fresh(t)
			admin, took := open(t, server), make(chan int)
			for i := range n {
				l := open(t, server)
				go func() {
					for token := fmt.Sprint(i); ; {
						if _, err := l.Acquire(t.Context(), "key", token, time.Minute); err != nil {
							return
						}
						select {
						case took <- i:
						case <-t.Context().Done():
						}
						if _, err := l.Release(t.Context(), "key", token); err != nil {
							return
						}
					}
				}()
			}
			var order []int
			for before := ""; len(order) < 3*n; before = fmt.Sprint(order[len(order)-1]) {
				awaitQueue(t, admin, n-1, before)
				order = append(order, <-took)
			}
			require.Equal(t, slices.Repeat(order[:n], 3), order)
		})
	}
}

// awaitQueue returns when so many wait for the key, and another than before holds it.
func awaitQueue(t *testing.T, l *postgres.Locker, n int, before string) {
	require.Eventually(t, func() bool {
		h, err := l.Inspect(t.Context(), "key")
		return err == nil && h.Held && h.Token != before && h.Waiting == n
	}, time.Minute, time.Millisecond)
}
