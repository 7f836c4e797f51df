// Package bare takes and frees locks with nothing but a client library. It is what other locks are measured beside.
package bare

import (
	"context"
	"errors"
	"time"

	redigo "github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// A Lock is taken with SET NX PX, and freed with a script that compares and deletes. It has no fences, no queue and no
// renewal. Both functions make one attempt, and return an error if the lock was not taken or not freed.
type Lock struct {
	Take func(ctx context.Context, key, token string, ttl time.Duration) error
	Free func(ctx context.Context, key, token string) error
}

const compareAndDelete = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// freed tells whether compareAndDelete has deleted the key.
func freed(n int64, err error) error {
	if err == nil && n != 1 {
		err = errors.New("the lock was not held")
	}
	return err
}

// OnGoredis returns a lock on a client of go-redis.
func OnGoredis(client *goredis.Client) Lock {
	script := goredis.NewScript(compareAndDelete)
	return Lock{
		Take: func(ctx context.Context, key, token string, ttl time.Duration) error {
			return client.SetArgs(ctx, key, token, goredis.SetArgs{Mode: "NX", TTL: ttl}).Err()
		},
		Free: func(ctx context.Context, key, token string) error {
			return freed(script.Run(ctx, client, []string{key}, token).Int64())
		},
	}
}

// OnRueidis returns a lock on a client of rueidis.
func OnRueidis(client rueidis.Client) Lock {
	script := rueidis.NewLuaScript(compareAndDelete)
	return Lock{
		Take: func(ctx context.Context, key, token string, ttl time.Duration) error {
			return client.Do(ctx, client.B().Set().Key(key).Value(token).Nx().PxMilliseconds(ttl.Milliseconds()).Build()).Error()
		},
		Free: func(ctx context.Context, key, token string) error {
			return freed(script.Exec(ctx, client, []string{key}, []string{token}).AsInt64())
		},
	}
}

// OnRedigo returns a lock on a pool of redigo.
func OnRedigo(pool *redigo.Pool) Lock {
	script := redigo.NewScript(1, compareAndDelete)
	do := func(ctx context.Context, f func(redigo.Conn) error) error {
		conn, err := pool.GetContext(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		return f(conn)
	}
	return Lock{
		Take: func(ctx context.Context, key, token string, ttl time.Duration) error {
			return do(ctx, func(c redigo.Conn) error {
				_, err := redigo.String(c.Do("SET", key, token, "NX", "PX", ttl.Milliseconds()))
				return err
			})
		},
		Free: func(ctx context.Context, key, token string) error {
			return do(ctx, func(c redigo.Conn) error { return freed(redigo.Int64(script.Do(c, key, token))) })
		},
	}
}
