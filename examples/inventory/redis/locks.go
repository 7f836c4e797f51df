package main

import (
	"context"
	"slices"
	"time"

	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"

	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/examples/inventory/internal/sell"
)

// prefix is that of all keys on a server, since others may use it.
var prefix = rediscore.WithPrefix("dlock-inventory:")

// locks is where the lock on the stock is kept.
type locks struct {
	*sell.Locks
	closers []func() // of what the Client uses
}

// open returns when the store has answered.
func open(ctx context.Context, p *program, workers int) (*locks, error) {
	l := &locks{}
	locker, err := l.dial(p, workers)
	if err == nil {
		l.Locks = sell.NewLocks(locker)
		limited, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		_, err = l.Inspect(limited, l.Key)
	}
	if err != nil {
		_ = l.close() // err is the reason
	}
	return l, err
}

// close returns an error if a release was not answered.
func (l *locks) close() (err error) {
	if l.Locks != nil {
		err = l.Close()
	}
	for _, closer := range slices.Backward(l.closers) {
		closer()
	}
	return err
}

func (l *locks) dial(p *program, workers int) (locker *rediscore.Locker, err error) {
	switch p.backend {
	case "rueidis":
		client, err := rueidisclient.NewClient(rueidisclient.ClientOption{
			InitAddress:       []string{p.redis},
			ForceSingleClient: true,
			DisableCache:      true, // which Redis 5 could not serve, and locks do not use
			ConnWriteTimeout:  3 * time.Second,
		})
		if err != nil {
			return nil, err
		}
		l.closers, locker = append(l.closers, client.Close), rueidis.New(client, prefix)
	case "redigo":
		pool := &redigoclient.Pool{
			MaxIdle: workers, // each may make a call at the same time
			DialContext: func(ctx context.Context) (redigoclient.Conn, error) {
				return redigoclient.DialContext(ctx, "tcp", p.redis)
			},
		}
		l.closers, locker = append(l.closers, func() { pool.Close() }), redigo.New(pool, prefix)
	default:
		redis.SetLogger(silent{}) // failures to connect are returned too
		client := redis.NewClient(&redis.Options{Addr: p.redis, ContextTimeoutEnabled: true})
		l.closers, locker = append(l.closers, func() { client.Close() }), goredis.New(client, prefix)
	}
	l.closers = append(l.closers, func() { locker.Close() })
	return locker, nil
}

// silent is a logger of go-redis.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
