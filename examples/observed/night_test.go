//go:build unix

package main

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/election"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/internal/sqltest"
	"github.com/dlock-go/dlock/once"
)

// What goes wrong with a Redis, and how it is put right again.
var nights = []struct {
	name  string
	lasts time.Duration
	begin func(*night)
	end   func(*night)
}{
	{"suspended", 25 * time.Second, func(n *night) { n.server.Suspend() }, func(n *night) { n.server.Resume() }},
	{"killed", 25 * time.Second, func(n *night) { n.server.Kill() }, (*night).restart},
	{"killed, and restarted after a second", time.Second, func(n *night) { n.server.Kill() }, (*night).restart},
	{"emptied", 0, func(n *night) { n.do("FLUSHALL") }, func(*night) {}},
	{"full", 25 * time.Second, func(n *night) { n.do("CONFIG", "SET", "maxmemory", "1") }, func(n *night) { n.do("CONFIG", "SET", "maxmemory", "0") }},
	{"300 ms away", 25 * time.Second, func(n *night) { n.proxy.Slow(faultproxy.Both, faultproxy.Pace{Latency: 150 * time.Millisecond}) }, func(n *night) { n.heal() }},
	{"with another password", 25 * time.Second, func(n *night) {
		n.do("ACL", "SETUSER", "locks", "resetpass", ">changed")
		n.do("CLIENT", "KILL", "USER", "locks")
	}, func(n *night) { n.do("ACL", "SETUSER", "locks", ">secret") }},
	{"without the right to run scripts", 25 * time.Second, func(n *night) { n.do("ACL", "SETUSER", "locks", "-@scripting") },
		func(n *night) { n.do("ACL", "SETUSER", "locks", "+@scripting") }},
	{"read-only", 25 * time.Second, func(n *night) { n.do("REPLICAOF", "127.0.0.1", "1") }, func(n *night) { n.do("REPLICAOF", "NO", "ONE") }},
	{"behind a network that swallows all packets", 25 * time.Second, func(n *night) { n.proxy.Block(faultproxy.Both) }, func(n *night) { n.heal() }},
}

// Four services lose their Redis in ten ways, in turn. The test prints what their users and operators
// saw. It takes about eight minutes, so it runs only if DLOCK_NIGHT is set, to a part of the name of some
// ways, or to "all". With Prometheus installed it prints the alerts, too.
func TestNight(t *testing.T) {
	which := os.Getenv("DLOCK_NIGHT")
	if which == "" {
		t.Skip("DLOCK_NIGHT is not set")
	}
	pg := sqltest.Postgres(t)
	for _, way := range nights {
		if which == "all" || strings.Contains(way.name, which) {
			t.Run(way.name, func(t *testing.T) {
				n := newNight(t, sqltest.Open(t, pg))
				n.start()
				time.Sleep(10 * time.Second)
				n.log.reset()
				n.struck.Store(true)
				way.begin(n)
				time.Sleep(way.lasts)
				way.end(n)
				time.Sleep(10 * time.Second)
				n.struck.Store(false)
				n.stop()
				n.report(way.lasts)
			})
		}
	}
}

// A night is the four services and what they stand on.
type night struct {
	t       *testing.T
	server  *redistest.Server
	proxy   *faultproxy.Proxy
	db      *sql.DB
	service *service
	log     *logCount
	alerts  func() []string

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	clients []*dlock.Client
	struck  atomic.Bool // from the fault to the end

	mu       sync.Mutex
	statuses map[string]int // of requests in the time when it was struck
	slowest  map[string]time.Duration
	errors   map[string]int
	runs     map[time.Time]int // of the cron job, by due
	leads    []span
	lost     int
}

type span struct{ from, to time.Time }

const stock = 1_000_000

func newNight(t *testing.T, db *sql.DB) *night {
	n := &night{t: t, server: redistest.Start(t), db: db, log: &logCount{lines: make(map[string]int)},
		statuses: make(map[string]int), slowest: make(map[string]time.Duration), errors: make(map[string]int), runs: make(map[time.Time]int)}
	var err error
	n.proxy, err = faultproxy.New(n.server.Addr())
	require.NoError(t, err)
	t.Cleanup(n.proxy.Close)
	n.addUser()
	for _, statement := range []string{
		`DROP TABLE IF EXISTS stock, sales`,
		`CREATE TABLE stock (amount int, fence bigint, lease text)`,
		`CREATE TABLE sales (number serial, fence bigint)`,
		fmt.Sprintf(`INSERT INTO stock VALUES (%d, 0, '')`, stock),
	} {
		_, err := db.Exec(statement)
		require.NoError(t, err)
	}
	n.service, err = newService(nil)
	require.NoError(t, err)
	n.ctx, n.cancel = context.WithCancel(t.Context())
	n.alerts = n.watch()
	return n
}

func (n *night) do(args ...string) {
	_, err := n.server.Do(args...)
	require.NoError(n.t, err, "%v", args)
}

func (n *night) addUser() { n.do("ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all") }

func (n *night) restart() {
	n.server.Restart()
	n.addUser()
}

func (n *night) heal() { require.NoError(n.t, n.proxy.Heal()) }

// replica returns the Client of one process.
func (n *night) replica(opts ...dlock.Option) *dlock.Client {
	rdb := redis.NewClient(&redis.Options{Addr: n.proxy.Addr(), Username: "locks", Password: "secret", ContextTimeoutEnabled: true})
	n.t.Cleanup(func() { rdb.Close() })
	c, err := n.service.client(goredis.New(rdb))
	require.NoError(n.t, err)
	c = c.With(append(opts, dlock.WithObserver(dlock.NewLogObserver(slog.New(n.log))))...)
	n.clients = append(n.clients, c)
	return c
}

func (n *night) start() {
	for i := range 3 {
		n.sell(n.replica(dlock.WithMaxWait(2 * time.Second)))
		n.schedule(n.replica(dlock.WithTTL(2 * time.Second)))
		n.lead(n.replica(dlock.WithTTL(5*time.Second), dlock.WithOwner(fmt.Sprint("candidate ", i))))
	}
	n.keep(n.replica(dlock.WithTTL(15 * time.Second)))
}

func (n *night) stop() {
	n.cancel()
	n.running.Wait()
	for _, c := range n.clients {
		_ = c.Close()
	}
}

// sell serves HTTP requests that sell the last item, three a second.
func (n *night) sell(locks *dlock.Client) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answered := false
		err := locks.Do(r.Context(), "sale:stock", func(ctx context.Context, lease *dlock.Lease) error {
			ok, err := n.sale(ctx, lease)
			answered = ok
			return err
		})
		switch {
		case err == nil, answered && errors.Is(err, dlock.ErrLost): // the database has accepted the fence
			w.WriteHeader(http.StatusOK)
		case errors.Is(err, dlock.ErrHeld):
			http.Error(w, err.Error(), http.StatusConflict)
		default:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	n.running.Go(func() {
		for n.ctx.Err() == nil {
			begun, w := time.Now(), httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(n.ctx, http.MethodPost, "/sale", nil))
			n.note(fmt.Sprint("POST /sale ", w.Code), time.Since(begun), w.Body.String())
			pause(n.ctx, time.Second/3-time.Since(begun))
		}
	})
}

// note counts what a user or an operator sees in the time when the Redis is struck.
func (n *night) note(what string, took time.Duration, err string) {
	if !n.struck.Load() {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.statuses[what]++
	n.slowest[what] = max(n.slowest[what], took)
	if err != "" {
		n.errors[numbers(what+": "+strings.TrimSpace(err))]++
	}
}

// sale sells one item, in one transaction that checks the fence.
func (n *night) sale(ctx context.Context, lease *dlock.Lease) (sold bool, err error) {
	tx, err := n.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }()
	name := fmt.Sprint(lease.Fence(), "-", rand.Uint64())
	r, err := tx.ExecContext(ctx, `UPDATE stock SET amount = amount - 1, fence = $1, lease = $2
		WHERE amount > 0 AND (fence < $1 OR fence = $1 AND lease = $2)`, lease.Fence(), name)
	if err != nil {
		return false, err
	}
	if rows, err := r.RowsAffected(); err != nil || rows != 1 {
		return false, errors.Join(err, errors.New("the fence was refused"))
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO sales (fence) VALUES ($1)`, lease.Fence()); err != nil {
		return false, err
	}
	err = tx.Commit()
	return err == nil, err
}

// schedule runs a job once every four seconds.
func (n *night) schedule(locks *dlock.Client) {
	const period = 4 * time.Second
	job := once.New(locks, "cron:job", period)
	n.running.Go(func() {
		for due := time.Now().Truncate(period).Add(period); ; due = due.Add(period) {
			if pause(n.ctx, time.Until(due)); n.ctx.Err() != nil {
				return
			}
			n.running.Go(func() {
				runs := 0
				_, err := job.Do(n.ctx, due, func(context.Context, *dlock.Lease) error { runs++; return nil })
				if n.ctx.Err() != nil {
					return
				}
				if err != nil {
					n.note("cron failed", 0, err.Error())
				}
				n.mu.Lock()
				defer n.mu.Unlock()
				n.runs[due] += runs // 0 if it was missed
			})
		}
	})
}

// lead stands for election, and again half a second after the store has refused.
func (n *night) lead(locks *dlock.Client) {
	leader := election.New(locks, "leader:only")
	n.running.Go(func() {
		for n.ctx.Err() == nil {
			err := leader.Run(n.ctx, func(ctx context.Context, _ *dlock.Lease) error {
				from := time.Now()
				<-ctx.Done()
				n.mu.Lock()
				defer n.mu.Unlock()
				n.leads = append(n.leads, span{from, time.Now()})
				return nil
			})
			if err != nil {
				n.note("leader failed", 0, err.Error())
				pause(n.ctx, time.Second/2)
			}
		}
	})
}

// keep holds 2,000 leases, and acquires those again that are lost.
func (n *night) keep(locks *dlock.Client) {
	for i := range 2000 {
		n.running.Go(func() {
			time.Sleep(rand.N(3 * time.Second))
			for n.ctx.Err() == nil {
				lease, err := locks.Acquire(n.ctx, fmt.Sprint("key:", i))
				if err != nil {
					time.Sleep(time.Second/2 + rand.N(time.Second))
					continue
				}
				select {
				case <-lease.Done():
					n.mu.Lock()
					n.lost++
					n.mu.Unlock()
				case <-n.ctx.Done():
					lease.Release()
				}
			}
		})
	}
}

// watch starts a Prometheus that scrapes the services and has the alerts of this repository, if it is
// installed. It returns a function that returns the alerts that fire or are pending.
func (n *night) watch() func() []string {
	if _, err := exec.LookPath("prometheus"); err != nil {
		return func() []string { return []string{"not known: Prometheus is not installed"} }
	}
	metrics := httptest.NewServer(n.service)
	n.t.Cleanup(metrics.Close)
	rules, err := filepath.Abs("../../observe/otel/alerts.yml")
	require.NoError(n.t, err)
	dir := n.t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs: [{job_name: night, static_configs: [{targets: [%q]}]}]\n",
		rules, metrics.Listener.Addr())
	require.NoError(n.t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	port, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(n.t, err)
	addr := port.Addr().String()
	require.NoError(n.t, port.Close())
	cmd := exec.Command("prometheus", "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", addr)
	require.NoError(n.t, cmd.Start())
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	first := make(map[string]time.Time)
	struck := time.Time{}
	n.running.Go(func() {
		for tick := time.NewTicker(time.Second); n.ctx.Err() == nil; <-tick.C {
			if struck.IsZero() && n.struck.Load() {
				struck = time.Now()
			}
			for _, alert := range firing(addr) {
				if _, ok := first[alert]; !ok {
					first[alert] = time.Now()
				}
			}
		}
	})
	return func() (alerts []string) {
		for _, alert := range slices.Sorted(maps.Keys(first)) {
			alerts = append(alerts, fmt.Sprintf("%s, after %.0f s", alert, first[alert].Sub(struck).Seconds()))
		}
		return alerts
	}
}

// firing returns the alerts that fire, with their class.
func firing(prometheus string) (alerts []string) {
	r, err := http.Get("http://" + prometheus + "/api/v1/alerts")
	if err != nil {
		return nil // it is starting
	}
	defer r.Body.Close()
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if json.NewDecoder(r.Body).Decode(&answer) != nil {
		return nil
	}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			alerts = append(alerts, a.Labels["alertname"]+" "+a.Labels["dlock_class"])
		}
	}
	return alerts
}

// report prints what was seen, and fails if anything was sold twice.
func (n *night) report(lasted time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out bytes.Buffer
	fmt.Fprintf(&out, "\n  for %v, and in the 10 s after that\n", lasted)
	for _, what := range slices.Sorted(maps.Keys(n.statuses)) {
		fmt.Fprintf(&out, "  %-16s %4d times, in %v at most\n", what, n.statuses[what], n.slowest[what].Round(time.Millisecond))
	}
	for _, text := range most(n.errors, 5) {
		fmt.Fprintf(&out, "    %4d × %s\n", n.errors[text], text)
	}
	var sold, rows, left int
	require.NoError(n.t, n.db.QueryRow(`SELECT count(DISTINCT fence), count(*) FROM sales`).Scan(&sold, &rows))
	require.NoError(n.t, n.db.QueryRow(`SELECT amount FROM stock`).Scan(&left))
	fmt.Fprintf(&out, "  sold: %d of the stock, %d receipts\n", stock-left, rows)
	require.Equal(n.t, stock-left, rows)
	require.Equal(n.t, rows, sold, "a fence was used twice")
	ran := make(map[int]int) // how many dues, by the number of their runs
	for _, runs := range n.runs {
		ran[min(runs, 2)]++
	}
	fmt.Fprintf(&out, "  cron: %d instants, %d missed, %d ran twice\n", len(n.runs), ran[0], ran[2])
	slices.SortFunc(n.leads, func(a, b span) int { return a.from.Compare(b.from) })
	gap, overlap := time.Duration(0), time.Duration(0)
	for i := 1; i < len(n.leads); i++ {
		gap = max(gap, n.leads[i].from.Sub(n.leads[i-1].to))
		overlap = max(overlap, n.leads[i-1].to.Sub(n.leads[i].from))
	}
	fmt.Fprintf(&out, "  leader: %d changes, at most %v without one, two for at most %v\n", len(n.leads)-1, gap.Round(time.Millisecond), overlap)
	fmt.Fprintf(&out, "  2,000 keys: %d leases lost\n", n.lost)
	fmt.Fprintf(&out, "  alerts: %s\n", cmp.Or(strings.Join(n.alerts(), "; "), "none"))
	fmt.Fprintf(&out, "  log, INFO and above: %d lines\n", n.log.total())
	for _, line := range most(n.log.lines, 8) {
		fmt.Fprintf(&out, "    %4d × %s\n", n.log.lines[line], line)
	}
	n.t.Log(out.String())
}

// most returns the n keys with the largest counts.
func most(counts map[string]int, n int) []string {
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		if d := counts[b] - counts[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return keys[:min(n, len(keys))]
}

// numbers replaces what differs from one text to the next.
func numbers(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r >= '0' && r <= '9' {
			if strings.HasSuffix(b.String(), "#") {
				continue
			}
			r = '#'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// A logCount counts the lines of a log that an operator would see.
type logCount struct {
	mu    sync.Mutex
	lines map[string]int
}

func (*logCount) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (c *logCount) WithAttrs([]slog.Attr) slog.Handler         { return c }
func (c *logCount) WithGroup(string) slog.Handler              { return c }

func (c *logCount) Handle(_ context.Context, r slog.Record) error {
	line := fmt.Sprintf("%s %q", r.Level, r.Message)
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "error", "count":
			line += fmt.Sprintf(" %s=%q", a.Key, a.Value)
		}
		return true
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines[numbers(line)]++
	return nil
}

func (c *logCount) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = make(map[string]int)
}

func (c *logCount) total() (n int) {
	for _, k := range c.lines {
		n += k
	}
	return n
}
