package goredis_test

import (
	"context"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
)

func ExampleNew() {
	rdb := redis.NewClient(&redis.Options{
		Addr:                  "localhost:6379",
		ContextTimeoutEnabled: true, // so that go-redis honours contexts
	})
	client := dlock.New(goredis.New(rdb), dlock.WithOwner(dlock.HostOwner()))
	defer client.Close()

	err := client.Do(context.Background(), "order:1234", func(ctx context.Context, lease *dlock.Lease) error {
		return nil // handle the order, and stop when ctx ends
	})
	if err != nil {
		log.Print(err)
	}
}
