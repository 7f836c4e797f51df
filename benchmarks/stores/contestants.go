package stores

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredislib "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/postgres"
)

// A contestant is a store, and the usual way to lock with it.
type contestant struct {
	name   string
	server string // redis, postgres or etcd
	open   opener
}

type opener func(ctx context.Context, addr string, use use) (store, error)

// A use is what a store is opened for: so many callers at once, of whom so many want the same key.
type use struct {
	callers, rivals int
	ttl             time.Duration
}

type store struct {
	acquire acquire
	ping    func(context.Context) error // one round trip
	close   func()
}

// An acquire waits for a lock until ctx ends. release returns when the store has answered.
type acquire func(ctx context.Context, key int) (release func() error, err error)

const advisory = "pg_advisory_lock"

var contestants = []contestant{
	{"dlock on Redis", "redis", openRedis},
	{"dlock on PostgreSQL", "postgres", openDlock("on")},
	{"dlock on PostgreSQL, commit off", "postgres", openDlock("off")},
	{advisory, "postgres", openConns("on", "SELECT pg_advisory_lock($1)", "SELECT pg_advisory_unlock($1)")},
	{"pg_advisory_xact_lock", "postgres", openConns("on", "SELECT pg_advisory_xact_lock($1)", "COMMIT")},
	{"FOR UPDATE", "postgres", openConns("on", forUpdate, "COMMIT")},
	{"FOR UPDATE, commit off", "postgres", openConns("off", forUpdate, "COMMIT")},
	{"etcd", "etcd", openEtcd},
}

const (
	forUpdate = "SELECT FROM orders WHERE id = $1 FOR UPDATE"
	rows      = 100_000 // of orders
)

func contestantOf(name string) contestant {
	return contestants[slices.IndexFunc(contestants, func(c contestant) bool { return c.name == name })]
}

func openRedis(_ context.Context, addr string, use use) (store, error) {
	client := goredislib.NewClient(&goredislib.Options{Addr: addr, ContextTimeoutEnabled: true})
	all := dlock.New(goredis.New(client), dlock.WithTTL(use.ttl))
	ping := func(ctx context.Context) error { return client.Ping(ctx).Err() }
	return store{taking(all), ping, func() { all.Close(); client.Close() }}, nil
}

// openDlock returns an open with a setting of synchronous_commit.
func openDlock(commit string) opener {
	return func(ctx context.Context, addr string, use use) (store, error) {
		pool, err := dial(ctx, addr, commit, 4)
		if err != nil {
			return store{}, err
		}
		l := postgres.New(pool)
		all := dlock.New(l, dlock.WithTTL(use.ttl))
		return store{taking(all), pool.Ping, func() { all.Close(); l.Close(); pool.Close() }}, l.CreateTable(ctx)
	}
}

func taking(all *dlock.Client) acquire {
	return func(ctx context.Context, key int) (func() error, error) {
		l, err := all.Acquire(ctx, fmt.Sprint("order:", key))
		if err != nil {
			return nil, err
		}
		return l.Release, nil
	}
}

func dial(ctx context.Context, addr, commit string, conns int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig("postgres://postgres@" + addr + "/postgres?sslmode=disable")
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(conns)
	config.ConnConfig.RuntimeParams["synchronous_commit"] = commit
	return pgxpool.NewWithConfig(ctx, config)
}

// openConns returns an open for a connection for each caller. A lock that a COMMIT frees is taken in a transaction.
func openConns(commit, lock, unlock string) opener {
	return func(ctx context.Context, addr string, use use) (store, error) {
		pool, err := dial(ctx, addr, commit, use.callers)
		if err != nil {
			return store{}, err
		}
		return store{func(ctx context.Context, key int) (func() error, error) {
			c, err := pool.Acquire(ctx)
			if err != nil {
				return nil, err
			}
			args := []any{key % rows}
			if unlock == "COMMIT" {
				args = nil
				_, err = c.Exec(ctx, "BEGIN")
			}
			if err == nil {
				_, err = c.Exec(ctx, lock, key%rows)
			}
			if err != nil {
				c.Release() // which closes it, as it is in a transaction or broken
				return nil, err
			}
			return func() error {
				defer c.Release()
				_, err := c.Exec(context.Background(), unlock, args...)
				return err
			}, nil
		}, pool.Ping, pool.Close}, nil
	}
}

// openEtcd opens a session for each caller that wants the same key: one session would hold it twice.
func openEtcd(_ context.Context, addr string, use use) (store, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		return store{}, err
	}
	var sessions []*concurrency.Session
	closeAll := func() {
		for _, s := range sessions {
			s.Close()
		}
		client.Close()
	}
	for range use.rivals {
		s, err := concurrency.NewSession(client, concurrency.WithTTL(int(use.ttl.Seconds())))
		if err != nil {
			closeAll()
			return store{}, err
		}
		sessions = append(sessions, s)
	}
	free := make(chan *concurrency.Session, use.callers)
	for i := range use.callers {
		free <- sessions[i%use.rivals]
	}
	ping := func(ctx context.Context) error {
		_, err := client.Get(ctx, "ping", clientv3.WithSerializable())
		return err
	}
	return store{func(ctx context.Context, key int) (func() error, error) {
		s := <-free
		m := concurrency.NewMutex(s, fmt.Sprint("/order/", key))
		if err := m.Lock(ctx); err != nil {
			free <- s
			return nil, err
		}
		return func() error {
			defer func() { free <- s }()
			return m.Unlock(context.Background())
		}, nil
	}, ping, closeAll}, nil
}
