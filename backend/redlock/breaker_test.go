package redlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/breaker"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
)

// A breaker opens if the nodes cannot be reached, but not if a majority refuses the calls.
func TestBreakerAroundNodes(t *testing.T) {
	for name, test := range map[string]struct {
		errs [3]error
		open bool
	}{
		"no connections":     {[3]error{errDial, errDial, errDial}, true},
		"one node refuses":   {[3]error{errDial, errDial, none(errors.New("NOPERM"))}, true},
		"two nodes refuse":   {[3]error{errDial, none(errors.New("NOPERM")), none(errors.New("NOPERM"))}, false},
		"three nodes refuse": {[3]error{none(errors.New("NOPERM")), none(errors.New("NOPERM")), none(errors.New("NOPERM"))}, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newStores(3)
				for i := range s {
					s[i].Fail(test.errs[i])
				}
				l := redlock.New(s.nodes())
				defer l.Close()
				b := breaker.New(l, breaker.WithFailures(5))
				for range 5 {
					require.False(t, b.State().Open)
					_, err := b.TryAcquire(t.Context(), "key", "x", time.Second)
					require.Error(t, err)
				}
				require.Equal(t, test.open, b.State().Open, "open: %+v", b.State())
			})
		})
	}
}
