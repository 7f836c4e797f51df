package stores

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain is also each process that is started.
func TestMain(m *testing.M) {
	if !isChild() {
		os.Exit(m.Run())
	}
}

var (
	measure = flag.Bool("measure", false, "measure, in place of a test")
	update  = flag.Bool("update", false, "write the tables of the page")
)

// TestMeasure measures in earnest.
func TestMeasure(t *testing.T) {
	if !*measure {
		t.Skip("nothing is measured without -measure")
	}
	require.True(t, durable(), "%s is in memory, where an fsync costs nothing", os.TempDir())
	b := &bench{window: 2 * time.Second, ttl: 5 * time.Second, crowd: 1000, rounds: 2}
	m, failed := b.run(t)
	m.Command = "DLOCK_REDIS=1 DLOCK_POSTGRES=1 go test -C benchmarks/stores -timeout 1h -run TestMeasure -measure"
	require.NoError(t, m.Save("stores.json"))
	page, _, err := performance.Redrawn("stores")
	require.NoError(t, err)
	require.NoError(t, performance.Write(page))
	require.NoError(t, failed)
}

// TestShortRun measures every row, on real servers.
func TestShortRun(t *testing.T) {
	b := &bench{window: 100 * time.Millisecond, ttl: 2 * time.Second, crowd: 20, rounds: 1}
	m, failed := b.run(t)
	require.NoError(t, failed)
	for _, r := range table {
		for _, c := range contestants {
			require.NotEmpty(t, m.Find(r.name, c.name).Figures)
		}
	}
	for i, c := range contestants {
		bySession := contestants[i].server == "postgres" && i > 2 // the server frees what a connection holds when that ends
		figure := func(row, name string) float64 { return m.Find(row, c.name).Figure(name) }
		require.Equal(t, bySession, figure("crowd", "connections") > float64(b.crowd), "%s: %v", c.name, m.Find("crowd", c.name))
		require.Equal(t, bySession, figure("killed holder", "next s") < 1, "%s: %v", c.name, m.Find("killed holder", c.name))
		require.Equal(t, bySession, figure("stopped holder", "next s") == 4, "%s: %v", c.name, m.Find("stopped holder", c.name))
		require.Greater(t, figure("8 waiters", "trip ms"), 2.0)
		require.Greater(t, figure("8 waiters", "gap ms"), 2.0, c.name)
	}
	for _, w := range ways[2:] {
		require.Positive(t, m.Find("commit off", w.name).Figure("p50 ms"), w.name)
	}
}

func TestPage(t *testing.T) { performance.Check(t, 5, *update) }
