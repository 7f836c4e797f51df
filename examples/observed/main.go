// Observed is a service that is under load and shows what its locks do: metrics for Prometheus, and spans.
//
// Usage (in examples/observed of a clone of the repository: this module is not released):
//
//	go run . [-addr host:port] [-redis host:port] [-workers n] [-spans]
//
// The locks are in memory, or on the Redis server that -redis names. It serves /metrics for Prometheus: see dashboard.json for
// Grafana, and observe/otel/alerts.yml. With -spans, it prints all spans.
//
// A few leases of import:all are lost all the time: they are short and not renewed, which is what the alert DlockOverrun is for.
// dlock watch shows the locks on Redis as they are taken and released.
//
// To try an outage: start redis-server --port 6400 --save "" in the background, run this with -redis localhost:6400, and kill
// the server (every attempt fails at once) or stop it with SIGSTOP (every attempt fails after its time limit). Calls that wait
// when the server dies go on waiting: those of report:0 and report:1 have no WithMaxWait.
//
// For a service of your own, read service.go: a Client with metrics and traces, and a Redis client that is instrumented without
// secrets in its spans. load.go has the workers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/memory"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "observed:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	flags := flag.NewFlagSet("observed", flag.ContinueOnError)
	addr := flags.String("addr", "localhost:8080", "`host:port` to serve on")
	server := flags.String("redis", "", "`host:port` of the Redis server; without it, the locks are in memory")
	workers := flags.Int("workers", 12, "how many goroutines want locks")
	print := flags.Bool("spans", false, "print all spans")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if !*print {
		stdout = nil
	}
	s, err := newService(stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.tracers.Shutdown(context.WithoutCancel(ctx))) }()
	var store dlock.Locker = memory.New()
	if *server != "" {
		rdb, err := s.redis(*server)
		if err != nil {
			return err
		}
		defer rdb.Close()
		store = goredis.New(rdb)
	}
	client, err := s.client(store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()

	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "http://%s\n", listener.Addr())
	web := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 5 * time.Second,
	}
	context.AfterFunc(ctx, func() { _ = web.Shutdown(context.Background()) })
	ctx, stop := context.WithCancel(ctx)
	wait := load(ctx, client, s.tracers.Tracer("observed"), *workers)
	defer func() { stop(); wait() }()
	if err := web.Serve(listener); err != http.ErrServerClosed {
		return err
	}
	return nil
}
