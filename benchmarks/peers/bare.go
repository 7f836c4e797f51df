package peers

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"

	rueidislib "github.com/redis/rueidis"
)

// A bare client sends a command, and returns the reply as a text.
type bare func(ctx context.Context, command ...string) (string, error)

// openBare returns locks that are taken with SET NX PX, and freed with a script that compares and deletes. They have no fences,
// no queue and no renewal.
func openBare(dial func(addr string) (bare, error)) func(job) (acquire, error) {
	return func(j job) (acquire, error) {
		do, err := dial(j.Addrs[0])
		if err != nil {
			return nil, err
		}
		ttl := strconv.FormatInt(j.TTL.Milliseconds(), 10)
		free, err := do(context.Background(), "SCRIPT", "LOAD", `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
		return func(ctx context.Context, key string) (held, error) {
			token := rand.Text()
			reply, err := do(ctx, "SET", key, token, "NX", "PX", ttl)
			if err == nil && reply != "OK" {
				err = fmt.Errorf("%s is taken", key)
			}
			return held{release: func() bool {
				reply, err := do(ctx, "EVALSHA", free, "1", key, token)
				return err == nil && reply == "1"
			}}, err
		}, err
	}
}

func bareGoredis(addr string) (bare, error) {
	client := dialGoredis(addr)
	return func(ctx context.Context, command ...string) (string, error) {
		reply, err := client.Do(ctx, words(command)...).Result()
		return fmt.Sprint(reply), err
	}, nil
}

func bareRedigo(addr string) (bare, error) {
	pool := dialRedigo(addr)
	return func(ctx context.Context, command ...string) (string, error) {
		conn, err := pool.GetContext(ctx)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		reply, err := conn.Do(command[0], words(command[1:])...)
		if text, ok := reply.([]byte); ok {
			return string(text), err
		}
		return fmt.Sprint(reply), err
	}, nil
}

func bareRueidis(addr string) (bare, error) {
	client, err := dialRueidis(addr)
	return func(ctx context.Context, command ...string) (string, error) {
		reply, err := client.Do(ctx, client.B().Arbitrary(command...).Build()).ToAny()
		if rueidislib.IsRedisNil(err) {
			err = nil
		}
		return fmt.Sprint(reply), err
	}, err
}

func words(command []string) (all []any) {
	for _, word := range command {
		all = append(all, word)
	}
	return all
}
