package redigo_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log"
	"os"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	dlockredigo "github.com/dlock-go/dlock/backend/redigo"
)

// A service connects over TLS, as a user who has only the rights that its locks need.
// docs/security.md has the commands that create the user.
func Example_tls() {
	certificate, err := tls.LoadX509KeyPair(os.Getenv("REDIS_CERT"), os.Getenv("REDIS_KEY"))
	if err != nil {
		log.Fatal(err)
	}
	authority, err := os.ReadFile(os.Getenv("REDIS_CA")) // has signed the server's certificate
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	config := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}}
	pool := &redis.Pool{
		MaxIdle: 10,
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", os.Getenv("REDIS_ADDR"),
				redis.DialUseTLS(true), redis.DialTLSConfig(config),
				redis.DialUsername("dlock"), redis.DialPassword(os.Getenv("REDIS_PASSWORD")),
				redis.DialReadTimeout(3*time.Second), redis.DialWriteTimeout(3*time.Second))
		},
	}
	defer pool.Close()
	client := dlock.New(dlockredigo.New(pool, dlockredigo.WithPrefix("app:")))
	defer client.Close()

	err = client.Do(context.Background(), "order:1234", func(ctx context.Context, lease *dlock.Lease) error {
		return nil // handle the order, and stop when ctx ends
	})
	if err != nil {
		log.Fatal(err)
	}
}

func TestTLSExample(t *testing.T) { adaptertest.TLSExample(t, Example_tls) }
