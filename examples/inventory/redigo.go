package main

import (
	"cmp"
	"context"

	"github.com/gomodule/redigo/redis"

	"github.com/dlock-go/dlock"
	dlockredigo "github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
)

func dialRedigo(cfg config) (dlock.Locker, func() error, error) {
	pool := &redis.Pool{
		MaxIdle: cfg.workers, // each may make a call at the same time
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", cfg.redis,
				redis.DialConnectTimeout(timeout),
				redis.DialReadTimeout(timeout),
				redis.DialWriteTimeout(timeout))
		},
	}
	locker := dlockredigo.New(pool, rediscore.WithPrefix(prefix))
	return locker, func() error { return cmp.Or(locker.Close(), pool.Close()) }, nil
}
