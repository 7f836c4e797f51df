package otel_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"go.opentelemetry.io/otel"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	dlockotel "github.com/dlock-go/dlock/observe/otel"
)

// OpenTelemetry's own package is called otel, too, so one of them gets another name.
func Example() {
	observer, err := dlockotel.New(
		dlockotel.WithTracerProvider(otel.GetTracerProvider()), // as without this option
		dlockotel.WithClass(func(key string) string {
			class, _, _ := strings.Cut(key, ":") // "order" for "order:4711"
			return class
		}),
	)
	if err != nil {
		log.Fatal(err)
	}
	client := dlock.New(memory.New(), dlock.WithObserver(observer))
	defer client.Close()
	registration, err := dlockotel.RegisterStats(client)
	if err != nil {
		log.Fatal(err)
	}
	defer registration.Unregister()

	err = client.Do(context.Background(), "order:4711", func(ctx context.Context, lease *dlock.Lease) error {
		fmt.Println("handling the order")
		return ctx.Err()
	})
	if err != nil {
		log.Print(err)
	}
	// Output: handling the order
}
