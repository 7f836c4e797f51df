package rueidis_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log"
	"os"
	"testing"

	"github.com/redis/rueidis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	dlockrueidis "github.com/dlock-go/dlock/backend/rueidis"
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
	rdb, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{os.Getenv("REDIS_ADDR")},
		TLSConfig:   config,
		Username:    "dlock",
		Password:    os.Getenv("REDIS_PASSWORD"),
		// Client-side caching, and the question whether this is a cluster, need more rights.
		DisableCache:      true,
		ForceSingleClient: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	client := dlock.New(dlockrueidis.New(rdb, dlockrueidis.WithPrefix("app:")))
	defer client.Close()

	err = client.Do(context.Background(), "order:1234", func(ctx context.Context, lease *dlock.Lease) error {
		return nil // handle the order, and stop when ctx ends
	})
	if err != nil {
		log.Fatal(err)
	}
}

func TestTLSExample(t *testing.T) { adaptertest.TLSExample(t, Example_tls) }
