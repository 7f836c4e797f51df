package main

import (
	"context"

	"github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/extra/redisotel/v9"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rueidis"
)

// backends return the store of the locks, and what closes its client. addr is that of a Redis server.
var backends = map[string]func(s *service, addr string) (dlock.Locker, func(), error){
	"memory": func(*service, string) (dlock.Locker, func(), error) { return memory.New(), func() {}, nil },

	// What redisotel exports must not have the arguments of commands: they are secrets.
	"goredis": func(s *service, addr string) (dlock.Locker, func(), error) {
		c := goredislib.NewClient(&goredislib.Options{Addr: addr, ContextTimeoutEnabled: true})
		err := redisotel.InstrumentTracing(c, redisotel.WithTracerProvider(s.tracers), redisotel.WithDBStatement(false))
		return goredis.New(c), func() { _ = c.Close() }, err
	},
	"rueidis": func(_ *service, addr string) (dlock.Locker, func(), error) {
		c, err := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: []string{addr}, DisableCache: true})
		if err != nil {
			return nil, nil, err
		}
		return rueidis.New(c), c.Close, nil
	},
	"redigo": func(_ *service, addr string) (dlock.Locker, func(), error) {
		pool := &redis.Pool{MaxIdle: 16, DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", addr)
		}}
		return redigo.New(pool), func() { _ = pool.Close() }, nil
	},
}
