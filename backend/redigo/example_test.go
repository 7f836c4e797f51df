package redigo_test

import (
	"context"
	"log"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/dlock-go/dlock"
	dlockredigo "github.com/dlock-go/dlock/backend/redigo"
)

func ExampleNew() {
	pool := &redis.Pool{
		MaxIdle: 10,
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", "localhost:6379",
				redis.DialReadTimeout(3*time.Second), redis.DialWriteTimeout(3*time.Second))
		},
	}
	client := dlock.New(dlockredigo.New(pool, dlockredigo.WithPrefix("myapp:lock:")), dlock.WithOwner(dlock.HostOwner()))
	defer client.Close()

	err := client.Do(context.Background(), "order:1234", func(ctx context.Context, lease *dlock.Lease) error {
		return nil // handle the order, and stop when ctx ends
	})
	if err != nil {
		log.Print(err)
	}
}
