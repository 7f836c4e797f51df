package dlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

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
		time.Sleep(10 * time.Millisecond) // the work goes on for a little while
		return ctx.Err()
	})
	_ = locks.Close()
	// Unordered output:
	// level=WARN msg="dlock: lease lost" key=user
	// level=WARN msg="dlock: work went on after its lease was lost" owed=false key=user
}
