package main

import (
	"net"

	"github.com/redis/rueidis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	dlockrueidis "github.com/dlock-go/dlock/backend/rueidis"
)

// dialRueidis connects, since rueidis does so at once.
func dialRueidis(cfg config) (dlock.Locker, func() error, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:       []string{cfg.redis},
		ForceSingleClient: true,
		DisableCache:      true, // which Redis 5 could not serve, and locks do not use
		Dialer:            net.Dialer{Timeout: timeout},
		ConnWriteTimeout:  timeout,
	})
	if err != nil {
		return nil, nil, err
	}
	locker := dlockrueidis.New(client, rediscore.WithPrefix(prefix))
	hangUp := func() error {
		defer client.Close()
		return locker.Close()
	}
	return locker, hangUp, nil
}
