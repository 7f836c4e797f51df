package dlock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// usable reports why a service must not start: the store refuses its calls. A store that is away
// may come back, so that is no reason.
func usable(ctx context.Context, locks *dlock.Client) error {
	_, err := locks.Inspect(ctx, "start") // any key
	if errors.Is(err, dlock.ErrUnavailable) {
		return nil
	}
	return err
}

// A service looks at its start whether it can use the store, since a wrong password is otherwise
// found by the first request. Inspect changes nothing, and needs no more rights than a lock does.
func Example_start() {
	store := memory.New()
	locks := dlock.New(store)
	defer locks.Close()
	ctx := context.Background()

	fmt.Println(usable(ctx, locks))
	store.Fail(&dlock.NoEffectError{Err: errors.New("WRONGPASS invalid username-password pair")}) // as a backend does
	fmt.Println(usable(ctx, locks))
	store.Fail(errors.New("connection refused"))
	fmt.Println(usable(ctx, locks))
	// Output:
	// <nil>
	// dlock: inspect "start": the store refused: WRONGPASS invalid username-password pair
	// <nil>
}
