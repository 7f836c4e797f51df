package goredis_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
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
	rdb := redis.NewClient(&redis.Options{
		Addr:                  os.Getenv("REDIS_ADDR"),
		TLSConfig:             config,
		Username:              "dlock",
		Password:              os.Getenv("REDIS_PASSWORD"),
		ContextTimeoutEnabled: true, // so that go-redis honours contexts
	})
	defer rdb.Close()
	client := dlock.New(goredis.New(rdb, goredis.WithPrefix("app:")))
	defer client.Close()

	err = client.Do(context.Background(), "order:1234", func(ctx context.Context, lease *dlock.Lease) error {
		return nil // handle the order, and stop when ctx ends
	})
	if err != nil {
		log.Fatal(err)
	}
}

func TestTLSExample(t *testing.T) { adaptertest.TLSExample(t, Example_tls) }
