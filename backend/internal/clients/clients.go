// Package clients connects to Redis through each client library, for tests.
package clients

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"

	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
)

// Password is that of all users.
const Password = "pass"

// Settings are those of a client, beside the ones that the documentation asks for.
type Settings struct {
	Addrs    []string // of one server, of the nodes of a cluster, or of Sentinels
	Cluster  bool     // they are nodes of a cluster
	Master   string   // what Sentinels call it
	User     string   // with Password; "": none
	DB       int
	TLS      *tls.Config
	Pool     int           // connections at most; 0: as many as the library makes
	Patience time.Duration // for one call, and to connect; 0: that of the library
	Caches   bool          // rueidis caches, and finds out itself what its server is; both need rights
	Dial     func(ctx context.Context, addr string) (net.Conn, error)
}

// At is the Settings of a client of one server.
func At(addr string) Settings { return Settings{Addrs: []string{addr}} }

// A Library is one of the client libraries.
type Library struct {
	Name string
	Open func(s Settings, opts ...rediscore.Option) (l *rediscore.Locker, closeClient func(), err error)
}

// All are the libraries, and Topologies those that know clusters and Sentinels.
var (
	All        = []Library{GoRedis, Rueidis, Redigo}
	Topologies = All[:2]
)

// The libraries.
var (
	GoRedis = Library{"goredis", openGoRedis}
	Rueidis = Library{"rueidis", openRueidis}
	Redigo  = Library{"redigo", openRedigo}
)

// Dial returns a Locker on a client of its own, and a function that closes the client, as the end of t does.
func (lib Library) Dial(t testing.TB, s Settings, opts ...rediscore.Option) (l *rediscore.Locker, closeClient func()) {
	t.Helper()
	l, closeClient, err := lib.Open(s, opts...)
	if err != nil {
		t.Fatal(lib.Name, s.Addrs, err)
	}
	t.Cleanup(closeClient)
	return l, closeClient
}

func openGoRedis(s Settings, opts ...rediscore.Option) (*rediscore.Locker, func(), error) {
	o := &goredislib.UniversalOptions{
		Addrs: s.Addrs, MasterName: s.Master, DB: s.DB, TLSConfig: s.TLS, ContextTimeoutEnabled: true,
		PoolSize: s.Pool, DialTimeout: s.Patience, ReadTimeout: s.Patience,
	}
	if s.User != "" {
		o.Username, o.Password = s.User, Password
	}
	if s.Dial != nil {
		o.Dialer = func(ctx context.Context, _, addr string) (net.Conn, error) { return s.Dial(ctx, addr) }
	}
	var client goredislib.UniversalClient
	switch {
	case s.Cluster:
		client = goredislib.NewClusterClient(o.Cluster())
	case s.Master != "":
		client = goredislib.NewFailoverClient(o.Failover())
	default:
		client = goredislib.NewClient(o.Simple())
	}
	return goredis.New(client, opts...), func() { client.Close() }, nil
}

func openRueidis(s Settings, opts ...rediscore.Option) (*rediscore.Locker, func(), error) {
	o := rueidislib.ClientOption{
		InitAddress: s.Addrs, SelectDB: s.DB, TLSConfig: s.TLS, DisableCache: !s.Caches, ConnWriteTimeout: s.Patience,
		ForceSingleClient: !s.Caches && !s.Cluster && s.Master == "", Sentinel: rueidislib.SentinelOption{MasterSet: s.Master},
	}
	o.Dialer.Timeout = s.Patience
	if s.User != "" {
		o.Username, o.Password = s.User, Password
	}
	if s.Dial != nil {
		o.DialCtxFn = func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return s.Dial(ctx, addr)
		}
	}
	if s.Cluster && s.Patience > 0 {
		o.ClusterOption.ShardsRefreshInterval = time.Second // as the documentation advises
	}
	if s.Pool > 0 {
		o.PipelineMultiplex, o.BlockingPoolSize = -1, s.Pool
	}
	client, err := rueidislib.NewClient(o)
	if err != nil && (client == nil || !o.ForceSingleClient) { // which returns one although it could not connect
		return nil, nil, err
	}
	return rueidis.New(client, opts...), client.Close, nil
}

func openRedigo(s Settings, opts ...rediscore.Option) (*rediscore.Locker, func(), error) {
	options := []redigolib.DialOption{redigolib.DialDatabase(s.DB), redigolib.DialUseTLS(s.TLS != nil), redigolib.DialTLSConfig(s.TLS)}
	if s.Patience > 0 {
		options = append(options, redigolib.DialConnectTimeout(s.Patience), redigolib.DialReadTimeout(s.Patience), redigolib.DialWriteTimeout(s.Patience))
	}
	if s.User != "" {
		options = append(options, redigolib.DialUsername(s.User), redigolib.DialPassword(Password))
	}
	if s.Dial != nil {
		options = append(options, redigolib.DialContextFunc(func(ctx context.Context, _, addr string) (net.Conn, error) { return s.Dial(ctx, addr) }))
	}
	pool := &redigolib.Pool{MaxIdle: 10, DialContext: func(ctx context.Context) (redigolib.Conn, error) {
		return redigolib.DialContext(ctx, "tcp", s.Addrs[0], options...)
	}}
	if s.Pool > 0 {
		pool.MaxIdle, pool.MaxActive, pool.Wait = s.Pool, s.Pool, true
	}
	return redigo.New(pool, opts...), func() { pool.Close() }, nil
}
