package peers

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/benchmarks/internal/figures"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestMain is also the process that a turn starts.
func TestMain(m *testing.M) {
	if !isWorker() {
		os.Exit(m.Run())
	}
}

var measure = flag.String("measure", "", "measure `what`: orders, several or majority")

// TestMeasure measures in earnest.
func TestMeasure(t *testing.T) {
	if *measure == "" {
		t.Skip("nothing is measured without -measure")
	}
	all, ok := map[string]func() []scenario{"orders": loads, "several": onOneServer, "majority": onNodes}[*measure]
	require.True(t, ok, "-measure %s", *measure)
	m, failed := run(t.Context(), t, all())
	m.Command = "go test -C benchmarks/peers -timeout 1h -run TestMeasure -measure " + *measure
	require.NoError(t, m.Save(*measure+".json"))
	page, _, err := performance.Redrawn(*measure)
	require.NoError(t, err)
	require.NoError(t, performance.Write(page))
	require.NoError(t, failed)
}

// run measures all contestants in all scenarios, in rounds. The error says which turns failed.
func run(ctx context.Context, t testing.TB, all []scenario) (m *figures.Measurement, failed error) {
	b := startBench(t, all)
	info, _ := b.one[0].Do("INFO", "server")
	text, _ := info.(string)
	m = figures.Describe(text)
	begun := time.Now()
	for round := range 3 {
		for _, s := range all {
			if round >= s.rounds {
				continue
			}
			fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format(time.TimeOnly), s.name)
			for i := range s.among {
				c := s.among[(i+round)%len(s.among)]
				if err := b.measure(ctx, s, c, m.Of(s.name, c.id())); err != nil {
					failed = errors.Join(failed, fmt.Errorf("%s of %s: %w", s.name, c.id(), err))
				}
			}
		}
	}
	m.Took = time.Since(begun).Round(time.Second).String()
	m.Finish()
	return m, failed
}

// startBench starts the servers of some scenarios, and waits until nodes vote.
func startBench(t testing.TB, all []scenario) (b bench) {
	b.one = []*redistest.Server{redistest.Start(t)}
	if all[0].nodes > 0 {
		logging.Disable() // of go-redis, that a server is down
		for range 5 {
			b.nodes = append(b.nodes, redistest.Start(t))
		}
		require.NoError(t, awaitVotes(b.nodes))
	}
	return b
}
