package backend_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	goredislib "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A pageCall is a call of the table. Each has a key of its own.
type pageCall struct {
	name  string
	opts  []dlock.Option
	ctx   func() (context.Context, context.CancelFunc) // nil: one that does not end
	waits bool                                         // it begins before the fault, while another lease has the key
	long  bool                                         // it takes several seconds if the store is stopped
	lease bool                                         // it is about a lease
	do    func(ctx context.Context, k *pageKey) error
}

// A pageKey is the key of a call, and its lease, if there is one before the fault.
type pageKey struct {
	*dlock.Client
	key   string
	lease *dlock.Lease
	state dlock.Status
	test  context.Context
}

func within(d time.Duration) func() (context.Context, context.CancelFunc) {
	return func() (context.Context, context.CancelFunc) { return context.WithTimeout(context.Background(), d) }
}

func cancelledAfter(d time.Duration) func() (context.Context, context.CancelFunc) {
	return func() (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(d, cancel)
		return ctx, cancel
	}
}

var pageCalls = []pageCall{
	{name: "`Acquire`", do: acquireIt, long: true},
	{name: "`Acquire`, ctx of 500 ms", do: acquireIt, ctx: within(500 * time.Millisecond)},
	{name: "`Acquire`, ctx of 250 ms", do: acquireIt, ctx: within(250 * time.Millisecond)},
	{name: "`Acquire`, ctx of 600 ms, behind another call that hangs", do: acquireBehind, ctx: within(600 * time.Millisecond)},
	{name: "`Acquire`, cancelled after 1.5 s", do: acquireIt, ctx: cancelledAfter(1500 * time.Millisecond), long: true},
	{name: "`Acquire`, `WithMaxWait(0)`", do: acquireIt, opts: []dlock.Option{dlock.WithMaxWait(0)}},
	{name: "`Acquire`, `WithMaxWait(500ms)`", do: acquireIt, opts: []dlock.Option{dlock.WithMaxWait(500 * time.Millisecond)}},
	{name: "`Acquire`, `WithMaxWait(2s)`", do: acquireIt, opts: []dlock.Option{dlock.WithMaxWait(2 * time.Second)}},
	{name: "`Acquire`, `WithOutage(2s)`", do: acquireIt, opts: []dlock.Option{dlock.WithOutage(2 * time.Second)}},
	{name: "`Acquire` of a held key, ctx of 2 s, the store fails after 0.3 s", do: acquireIt, ctx: within(2 * time.Second), waits: true},
	{name: "`TryAcquire`", do: tryIt, long: true},
	{name: "`TryAcquire`, ctx of 500 ms", do: tryIt, ctx: within(500 * time.Millisecond)},
	{name: "`Do`", do: doIt, long: true},
	{name: "`Do`, ctx of 500 ms", do: doIt, ctx: within(500 * time.Millisecond)},
	{name: "`Inspect`", do: inspectIt, long: true},
	{name: "`Inspect`, ctx of 500 ms", do: inspectIt, ctx: within(500 * time.Millisecond)},
	{name: "`Renew`", do: renewIt, lease: true, long: true},
	{name: "`Renew`, ctx of 500 ms", do: renewIt, lease: true, ctx: within(500 * time.Millisecond)},
	{name: "`Release`", do: releaseIt, lease: true, long: true},
	{name: "`Break`", do: breakIt, lease: true, long: true},
	{name: "`Break`, ctx of 500 ms", do: breakIt, lease: true, ctx: within(500 * time.Millisecond)},
	{name: "`Adopt`", do: adoptIt, lease: true, long: true},
	{name: "`Adopt`, ctx of 500 ms", do: adoptIt, lease: true, ctx: within(500 * time.Millisecond)},
}

func acquireIt(ctx context.Context, k *pageKey) error { _, err := k.Acquire(ctx, k.key); return err }
func tryIt(ctx context.Context, k *pageKey) error     { _, err := k.TryAcquire(ctx, k.key); return err }
func inspectIt(ctx context.Context, k *pageKey) error { _, err := k.Inspect(ctx, k.key); return err }
func renewIt(ctx context.Context, k *pageKey) error   { return k.lease.Renew(ctx) }
func releaseIt(_ context.Context, k *pageKey) error   { return k.lease.Release() }
func breakIt(ctx context.Context, k *pageKey) error   { return k.Break(ctx, k.state) }

func doIt(ctx context.Context, k *pageKey) error {
	return k.Do(ctx, k.key, func(context.Context, *dlock.Lease) error { return nil })
}

func adoptIt(ctx context.Context, k *pageKey) error {
	d, err := k.lease.Detach()
	if err == nil {
		_, err = k.Adopt(ctx, d)
	}
	return err
}

// acquireBehind acquires a key while the client's call for another key is under way.
func acquireBehind(ctx context.Context, k *pageKey) error {
	go k.TryAcquire(k.test, k.key+" other")
	time.Sleep(100 * time.Millisecond)
	return acquireIt(ctx, k)
}

// pageFaults are what happens to a server.
var pageFaults = []struct {
	name    string
	server  string // what the table says of it
	answers bool   // it refuses calls; the others give no answer
	since7  bool   // older servers do not do it
	user    string
	strike  func(t *testing.T, s *redistest.Server)
}{
	{name: "stopped", server: "hangs", strike: func(_ *testing.T, s *redistest.Server) { s.Suspend() }},
	{name: "killed", server: "is away", strike: func(_ *testing.T, s *redistest.Server) { s.Kill() }},
	{name: "full", server: "is full", answers: true, strike: fill},
	{name: "replicas", server: "takes no writes", answers: true, since7: true, strike: isolate},
	{name: "disk", server: "takes no writes", answers: true, strike: breakDisk},
	{name: "busy", server: "is busy", answers: true, strike: occupy},
	{name: "password", server: "refuses the password", answers: true, user: "nobody", strike: func(*testing.T, *redistest.Server) {}},
}

// TestErrorsPage makes every call of the table in docs/operations.md with a server that fails, through each client
// library, and compares what the errors match with the table. It prints how long the calls took, and
// sets no limit for that. The calls that take long, or that a busy machine may delay too much, are made
// if DLOCK_LONG has adapters. The times of the table are from a run with -v and go-redis 9.17 or newer.
func TestErrorsPage(t *testing.T) {
	_, dialsAgain := reflect.TypeFor[goredislib.Options]().FieldByName("DialerRetries") // older releases have no times to show
	skipIfShort(t)
	t.Parallel()
	page, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	t.Run("of", func(t *testing.T) {
		for _, fault := range pageFaults {
			all := adaptertest.All() && (fault.name != "killed" || dialsAgain)
			t.Run(fault.name, func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				if fault.since7 {
					sinceRedis7(t, server)
				}
				cells := make([][]pageCell, len(pageCalls))
				var ready, done sync.WaitGroup
				struck := make(chan struct{})
				for i, call := range pageCalls {
					switch {
					case fault.answers && (call.ctx != nil || call.waits), fault.user != "" && call.lease:
						continue // it tells nothing new, or there is no lease
					case fault.name == "stopped" && call.long && !all:
						continue
					case fault.name == "killed" && call.ctx != nil && !call.waits && !all:
						continue // on a busy machine, ctx may end first
					}
					cells[i] = make([]pageCell, len(clients.All))
					for j, lib := range clients.All { // the columns: the clients of the documentation's programs
						s := clients.Settings{Addrs: []string{server.Addr()}, User: fault.user}
						if lib.Name == "redigo" {
							s.Patience = 3 * time.Second
						}
						l, _ := lib.Dial(t, s)
						c := dlock.New(l)
						t.Cleanup(func() { l.Close() })
						key := fmt.Sprint(lib.Name, i)
						if fault.user == "" {
							_, err := c.Inspect(t.Context(), key) // connects
							require.NoError(t, err)
						}
						k := &pageKey{Client: c.With(call.opts...), key: key, test: t.Context()}
						if call.lease || call.waits {
							var err error
							k.lease, err = c.Acquire(t.Context(), key)
							require.NoError(t, err)
							k.state, err = c.Inspect(t.Context(), key)
							require.NoError(t, err)
						}
						ready.Add(1)
						done.Go(func() {
							if ready.Done(); !call.waits {
								<-struck
							}
							ctx, cancel := context.Background(), context.CancelFunc(func() {})
							if call.ctx != nil {
								ctx, cancel = call.ctx()
							}
							defer cancel()
							begun := time.Now()
							err := call.do(ctx, k)
							took, ofCtx := time.Since(begun), ctx.Err()
							if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
								ofCtx = context.DeadlineExceeded // a socket may have noticed first
							}
							cells[i][j] = pageCell{err, took, ofCtx}
						})
					}
				}
				t.Cleanup(server.Kill) // before the clients are closed, which would wait for answers
				ready.Wait()
				time.Sleep(300 * time.Millisecond)
				fault.strike(t, server)
				close(struck)
				done.Wait()
				checkTable(t, string(page), fault.server, cells, all)
			})
		}
	})
}

// A pageCell is how a call ended.
type pageCell struct {
	err   error
	took  time.Duration
	ofCtx error
}

// says is the part of a cell that does not depend on the machine.
func (c pageCell) says() string {
	var matched []string
	for _, e := range []struct {
		error
		name string
	}{{dlock.ErrUnavailable, "`ErrUnavailable`"}, {dlock.ErrHeld, "`ErrHeld`"}, {context.DeadlineExceeded, "`DeadlineExceeded`"}, {context.Canceled, "`Canceled`"}} {
		if errors.Is(c.err, e.error) {
			matched = append(matched, e.name)
		}
	}
	switch {
	case c.err == nil:
		return "no error"
	case len(matched) > 0:
		return strings.Join(matched, " ")
	case dlock.Refused(c.err):
		return "refused"
	}
	return "another error"
}

// others are the calls that share a line with many.
const others = "all other calls"

// checkTable compares the lines of the table about a fault with what was found. Calls that end alike share a line.
func checkTable(t *testing.T, page, server string, cells [][]pageCell, all bool) {
	_, rest, begins := strings.Cut(page, "<!-- calls -->\n")
	table, _, ends := strings.Cut(rest, "<!-- end -->")
	require.True(t, begins && ends, "the page has no table of calls")
	said := make(map[string]string) // how calls end
	for _, line := range regexp.MustCompile(`(?m)^\| `+server+` \| (.*?) (\|.*)$`).FindAllStringSubmatch(table, -1) {
		for _, call := range strings.Split(line[1], "; ") {
			said[call] = line[2]
		}
	}
	for i, row := range cells {
		if row == nil {
			continue
		}
		name, end := pageCalls[i].name, "|"
		for j, cell := range row {
			t.Logf("%s, %s, after %v: %v", clients.All[j].Name, name, cell.took.Round(time.Millisecond), cell.err)
			end += fmt.Sprintf(" %s, %.1f s |", cell.says(), cell.took.Seconds())
			requireText(t, cell)
		}
		assert.Equal(t, withoutTimes(cmp.Or(said[name], said[others])), withoutTimes(end), "%s while the server %s: see TestErrorsPage", name, server)
		delete(said, name)
	}
	delete(said, others)
	assert.False(t, all && len(said) > 0, "the table has calls that were not made while the server %s: %v", server, said)
}

func withoutTimes(cells string) string {
	return regexp.MustCompile(`, [0-9.]+ s \|`).ReplaceAllString(cells, " |")
}

// requireText checks what every error says.
func requireText(t *testing.T, c pageCell) {
	t.Helper()
	if c.err == nil {
		return
	}
	for _, end := range []error{context.DeadlineExceeded, context.Canceled} {
		if c.ofCtx != end {
			assert.NotErrorIs(t, c.err, end)
			assert.NotContains(t, c.err.Error(), end.Error())
		}
	}
	switch {
	case dlock.Refused(c.err):
		assert.ErrorContains(t, c.err, "the store refused: ")
	case errors.Is(c.err, dlock.ErrUnavailable):
		assert.Regexp(t, `store unavailable: (no answer (for|within) [0-9.]+m?s|no answer: |no success for [0-9.]+s: the store refused: (.*-)?[A-Z]+ )`, c.err.Error())
	}
}

// TestStuckKey runs the commands with which docs/operations.md looks at a key, while one Client holds
// it and another waits. Each finds something.
func TestStuckKey(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	_, chapter, _ := strings.Cut(string(page), "## What to do when a key is stuck")
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	commands := regexp.MustCompile(`(?m)^redis-cli (.*)$`).FindAllStringSubmatch(chapter, -1)
	require.GreaterOrEqual(t, len(commands), 4)

	server := redistest.Start(t)
	l, _ := clients.GoRedis.Dial(t, clients.At(server.Addr()), rediscore.WithPrefix("myapp:lock:"))
	client := dlock.New(l)
	lease, err := client.Acquire(t.Context(), "order:7")
	require.NoError(t, err)
	waited := make(chan struct{})
	go func() { defer close(waited); _, _ = client.Acquire(t.Context(), "order:7") }()
	soon(t, func() bool { return listening(t, server, "myapp:lock:") == 1 })
	var tag string
	for _, c := range commands {
		args := strings.Fields(strings.NewReplacer("'", "", "{TAG}", tag).Replace(c[1]))
		if args[0] == "--scan" { // as redis-cli does it
			args = []string{"KEYS", args[2]}
		}
		reply := do(t, server, args...)
		require.NotEmpty(t, reply, "%q", args)
		if args[0] == "KEYS" {
			require.Len(t, reply, 2)
			tag = regexp.MustCompile(`\{.*\}`).FindString(reply.([]any)[0].(string))
		}
	}
	require.NoError(t, lease.Release())
	<-waited
	require.NoError(t, client.Close())
	require.NoError(t, l.Close())
}
