package rueidis_test

import (
	"context"
	"log"

	"github.com/redis/rueidis"

	"github.com/dlock-go/dlock"
	dlockrueidis "github.com/dlock-go/dlock/backend/rueidis"
)

func ExampleNew() {
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	client := dlock.New(dlockrueidis.New(rdb), dlock.WithOwner(dlock.HostOwner()))
	defer client.Close()

	err = client.Do(context.Background(), "order:1234", func(ctx context.Context, lease *dlock.Lease) error {
		return nil // handle the order, and stop when ctx ends
	})
	if err != nil {
		log.Print(err)
	}
}
