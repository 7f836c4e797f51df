package main

import (
	"cmp"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/rediscore"
)

func dialGoRedis(cfg config) (dlock.Locker, func() error, error) {
	client := redis.NewClient(goRedisOptions(cfg.redis))
	locker := goredis.New(client, rediscore.WithPrefix(prefix))
	return locker, func() error { return cmp.Or(locker.Close(), client.Close()) }, nil
}

func goRedisOptions(addr string) *redis.Options {
	logging.Disable() // or each failure to connect is told on stderr, besides being returned
	return &redis.Options{
		Addr:                  addr,
		ContextTimeoutEnabled: true,
		DialTimeout:           timeout,
		ReadTimeout:           timeout,
		WriteTimeout:          timeout,
	}
}
