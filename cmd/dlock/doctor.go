package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
)

// A finding is what a check has found.
type finding struct {
	Check  int    `json:"check"` // its number
	Title  string `json:"title"`
	Level  level  `json:"level"`
	Server string `json:"server,omitempty"` // if it is one of several
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
	Page   string `json:"page,omitempty"`
}

// A level is also an exit code.
type level int

const (
	good level = iota
	warning
	failure
)

func (l level) String() string               { return [...]string{"ok", "warning", "FAILURE"}[l] }
func (l level) MarshalText() ([]byte, error) { return []byte(strings.ToLower(l.String())), nil }

// checks are those of each master, by number from 1. Those that write have no look: probe makes them.
var checks = []struct {
	title string
	page  string
	look  func(ctx context.Context, m *master)
}{
	{"the server is one master of a version that dlock knows", "operations.md#managed-and-compatible-servers", version},
	{"no lock is evicted", "operations.md#settings-of-the-server", eviction},
	{"a restart forgets no lock", "operations.md#what-survives-what", persistence},
	{"a master that was cut off stops granting", "operations.md#settings-of-the-server", minReplicas},
	{"the clock runs at the right rate", "operations.md#what-survives-what", clock},
	{"the user has the rights that locks need", "security.md#rights", rights},
	{"a lock is acquired, renewed and released, and ends by itself (--probe)", "operations.md#the-error-says", nil},
	{"a waiter gets the lock by a message (--probe)", "security.md#the-queue", nil},
	{"there is room for connections and messages", "operations.md#connections", connections},
	{"the cluster has all slots", "operations.md#the-error-says", slots},
	{"nothing that dlock knows lasts for ever", "operations.md#what-to-do-when-a-key-is-stuck", leftovers},
	{"the server takes what locks, queues and WithReplicas send", "operations.md#managed-and-compatible-servers", abilities},
}

// findings are what checks have found.
type findings struct {
	next finding // what all findings of the present check have
	all  []finding
}

// begin begins a check.
func (f *findings) begin(number int) {
	c := checks[number-1]
	f.next.Check, f.next.Title, f.next.Page = number, c.title, "https://github.com/dlock-go/dlock/blob/main/docs/"+c.page
}

func (f *findings) find(l level, remedy, format string, args ...any) {
	found := f.next
	found.Level, found.Remedy, found.Text = l, remedy, fmt.Sprintf(format, args...)
	f.all = append(f.all, found)
}

// A master is a server under examination.
type master struct {
	findings
	client  *redis.Client
	cluster bool
	prefix  string
	probing bool
	info    map[string]string // INFO; empty if the user may not read it
}

// setting is a setting of the server, or "" if the user may not read it.
func (m *master) setting(ctx context.Context, name string) string {
	return m.client.ConfigGet(ctx, name).Val()[name]
}

func (m *master) number(name string) (n int64) {
	n, _ = strconv.ParseInt(m.info[name], 10, 64)
	return n
}

func version(ctx context.Context, m *master) {
	again, err := info(ctx, m.client)
	if err != nil {
		m.find(warning, "Grant the user INFO for this examination.", "INFO, which most checks need, cannot be read: %v", err)
		return
	}
	var major int
	_, _ = fmt.Sscanf(m.info["redis_version"], "%d.", &major)
	if major < 6 {
		m.find(failure, "Use Redis 6.0 or newer, or Valkey.", "the version is %q", m.info["redis_version"])
	}
	if role := m.info["role"]; role != "master" {
		m.find(failure, "Connect to the master: --sentinel or --cluster find it.", "the role of the server is %q", role)
	}
	if again["run_id"] != m.info["run_id"] {
		m.find(failure, "Connect to one server. Locks behind a load balancer are not exclusive.",
			"two connections lead to different servers")
	}
}

func eviction(_ context.Context, m *master) {
	const remedy = "CONFIG SET maxmemory-policy noeviction"
	switch policy := m.info["maxmemory_policy"]; {
	case policy == "noeviction":
	case policy == "":
		m.find(warning, "Find out whether the server evicts keys.", "the server does not say what it evicts")
	case m.number("maxmemory") == 0:
		m.find(warning, remedy, "the policy %s will evict locks as soon as maxmemory is set", policy)
	default:
		m.find(failure, remedy, "the policy %s evicts locks when the memory is full", policy)
	}
}

func persistence(_ context.Context, m *master) {
	noFile := m.info["aof_enabled"] == "0"
	switch {
	case m.info["loading"] == "1":
		m.find(failure, "Wait.", "the server is loading its data")
	case m.info["aof_last_write_status"] == "err" || m.info["rdb_last_bgsave_status"] == "err" && noFile:
		m.find(failure, "Look at the disk and at the log of the server.", "the server could not save its data")
	case noFile:
		m.find(warning, "CONFIG SET appendonly yes, or fence all writes.",
			"there is no append-only file: after a crash, locks are granted that others still hold")
	}
}

func minReplicas(ctx context.Context, m *master) {
	if m.number("connected_slaves") == 0 {
		return
	}
	switch m.setting(ctx, "min-replicas-to-write") {
	case "":
		m.find(warning, "Find out min-replicas-to-write.", "the user may not read the settings")
	case "0":
		m.find(warning, "CONFIG SET min-replicas-to-write 1",
			"a master that has lost its replicas goes on granting locks, which a failover forgets")
	}
}

func clock(ctx context.Context, m *master) {
	const (
		clockRate   = 0.005 // how much faster or slower the clock may be, which a slow answer must not look like
		clockOffset = 5 * time.Second
	)
	var server, before, after [2]time.Time
	for i := range server {
		time.Sleep(time.Duration(i) * time.Second)
		var err error
		before[i] = time.Now()
		if server[i], err = m.client.Time(ctx).Result(); err != nil {
			m.find(warning, "Grant the user TIME.", "the clock cannot be read: %v", err)
			return
		}
		after[i] = time.Now()
	}
	passed, offset := server[1].Sub(server[0]), server[1].Sub(after[1])
	least, most := before[1].Sub(after[0]), after[1].Sub(before[0])
	switch {
	case float64(passed) < float64(least)*(1-clockRate) || float64(passed) > float64(most)*(1+clockRate):
		m.find(failure, "Let the server's clock be slewed, never set, while it runs (chrony, ntpd -x).",
			"the server's clock went on by %v in %v, which is more than 0.5 %% off", passed, most)
	case offset.Abs() > clockOffset:
		m.find(warning, "Synchronize both clocks: the Started of locks and the fences depend on them.",
			"the server's clock is %v from this machine's, more than %v", offset.Round(time.Second), clockOffset)
	}
}

// needed are the commands of the rights that the page names, with arguments for ACL DRYRUN.
var needed = []string{
	"del KEY", "eval 1 1 KEY", "evalsha 1 1 KEY", "exists KEY", "get KEY",
	"pexpire KEY 1", "ping", "pttl KEY", "renamenx KEY KEY", "set KEY 1", "time", "hdel KEY 1", "hgetall KEY", "hlen KEY", "hmget KEY 1",
	"hset KEY 1 1", "publish CHANNEL 1", "pubsub numsub", "subscribe CHANNEL", "zadd KEY 1 1", "zcard KEY",
	"zrange KEY 0 1", "zrank KEY 1", "zrem KEY 1", "zremrangebyrank KEY 0 1",
}

func rights(ctx context.Context, m *master) {
	user, err := m.client.Do(ctx, "ACL", "WHOAMI").Text()
	names := map[string]string{"KEY": m.prefix + "{}dlock1:doctor", "CHANNEL": m.prefix + "{}dlock1:inbox:doctor"}
	var missing []string
	for i := 0; i < len(needed) && err == nil; i++ {
		line := []any{"ACL", "DRYRUN", user}
		for _, word := range strings.Fields(needed[i]) {
			line = append(line, cmp.Or(names[word], word))
		}
		var reply string
		if reply, err = m.client.Do(ctx, line...).Text(); err == nil && reply != "OK" {
			missing = append(missing, strings.ToUpper(line[3].(string)))
		}
	}
	switch {
	case err != nil && !m.probing:
		m.find(warning, "Use --probe, which tries what locks need.", "the rights cannot be read: %v", err)
	case err == nil && len(missing) > 0:
		m.find(failure, "Grant them, as the page says.", "the user %s lacks rights under the prefix %q: %s",
			user, m.prefix, strings.Join(missing, ", "))
	}
}

// lacks is what a server, a proxy or the rights of the user may not allow. The first one leaves nothing to look for.
var lacks = []struct {
	what    string
	level   level
	remedy  string
	command []any // with the words of rights; in a cluster only if it has no CHANNEL
}{
	{"EVAL", failure, "Use another server: locks need scripts.", []any{"EVAL", "return 1", 0}},
	{"TIME before a write in a script", failure, "Use Redis 5 or newer: fences need it.",
		[]any{"EVAL", "redis.call('TIME') return redis.call('DEL', KEYS[1])", 1, "KEY"}},
	{"PUBLISH in a script", warning, "Use WithQueue(false), or grant PUBLISH.", []any{"EVAL", "return redis.call('PUBLISH', ARGV[1], '')", 0, "CHANNEL"}},
	{"sorted sets in a script", warning, "Use WithQueue(false), or grant ZRANGE.", []any{"EVAL", "return redis.call('ZRANGE', KEYS[1], 0, 1)", 1, "KEY"}},
	{"SUBSCRIBE", warning, "Use WithQueue(false), or grant SUBSCRIBE: without it, waiters ask again and again.", []any{"SUBSCRIBE", "CHANNEL"}},
	{"WAIT", good, "Do without WithReplicas, or grant WAIT.", []any{"WAIT", 0, 1}},
}

// abilities tries what changes nothing.
func abilities(ctx context.Context, m *master) {
	names := map[any]any{"KEY": m.prefix + "{}dlock1:doctor", "CHANNEL": m.prefix + "{}dlock1:inbox:doctor"}
	for i, l := range lacks {
		line, channel := slices.Clone(l.command), false
		for j, word := range line {
			channel = channel || word == "CHANNEL"
			line[j] = cmp.Or(names[word], word)
		}
		if channel && m.cluster { // there it is one of a shard
			continue
		}
		reply, ok := errors.AsType[redis.Error](m.try(ctx, line))
		if ok && reply != redis.Nil && !redis.HasErrorPrefix(reply, "MOVED") {
			m.find(l.level, l.remedy, "%s is not allowed: %v", l.what, reply)
			if i == 0 {
				return
			}
		}
	}
	lua, err := m.client.Do(ctx, "EVAL", "return _VERSION", 0).Text()
	if err == nil && !slices.Contains([]string{"Lua 5.1", "Lua 5.2", "Lua 5.3", "Lua 5.4"}, lua) {
		m.find(warning, "Use --probe, which tries what locks need.", "scripts run on %q, and dlock was tried on Lua 5.1 to 5.4", lua)
	}
}

// try makes a call, and returns its error. A subscription has a connection of its own.
func (m *master) try(ctx context.Context, line []any) error {
	if line[0] != "SUBSCRIBE" {
		return m.client.Do(ctx, line...).Err()
	}
	sub := m.client.Subscribe(ctx)
	defer sub.Close()
	if err := sub.Subscribe(ctx, line[1].(string)); err != nil {
		return err
	}
	_, err := sub.ReceiveTimeout(ctx, time.Second)
	return err
}

func connections(ctx context.Context, m *master) {
	limit, _ := strconv.ParseInt(cmp.Or(m.info["maxclients"], m.setting(ctx, "maxclients")), 10, 64) // in INFO since 6.2
	if used := m.number("connected_clients"); limit > 0 && used*10 >= limit*8 {
		m.find(warning, "Raise maxclients, or find out who connects so often.",
			"%d of %d connections are in use, 80 %% or more", used, limit)
	}
	fields := strings.Fields(m.setting(ctx, "client-output-buffer-limit"))
	if i := slices.Index(fields, "pubsub"); i >= 0 && i+1 < len(fields) {
		if hard, err := strconv.ParseInt(fields[i+1], 10, 64); err == nil && hard != 0 && hard < 1<<20 {
			m.find(warning, "CONFIG SET client-output-buffer-limit 'pubsub 33554432 8388608 60'",
				"subscribers are disconnected when %d bytes wait for them, less than 1 MiB", hard)
		}
	}
}

func slots(ctx context.Context, m *master) {
	if !m.cluster {
		return
	}
	reply, err := m.client.ClusterInfo(ctx).Result()
	state, nodes := parseInfo(reply), m.client.ClusterNodes(ctx).Val()
	switch {
	case err != nil:
		m.find(warning, "Grant the user CLUSTER INFO.", "the state of the cluster cannot be read: %v", err)
	case state["cluster_state"] != "ok" || state["cluster_slots_ok"] != "16384":
		m.find(failure, "Repair the cluster (redis-cli --cluster check).",
			"the state of the cluster is %q, and %s of 16384 slots are served",
			state["cluster_state"], state["cluster_slots_ok"])
	case strings.Contains(nodes, "->-") || strings.Contains(nodes, "-<-"):
		m.find(warning, "Let the migration end: meanwhile, attempts in these slots are repeated.", "slots are being moved")
	}
}

// leftovers looks for tokens that never end.
func leftovers(ctx context.Context, m *master) {
	var keys []string
	for e, err := range newLocker(m.client, m.prefix).Scan(ctx, "") {
		if err != nil {
			m.find(warning, "Grant the user SCAN for this examination.", "the keys cannot be read: %v", err)
			return
		}
		if e.Remaining < 0 && strings.HasPrefix(e.Token, ours) {
			keys = append(keys, printable(e.Key))
		}
	}
	if len(keys) > 0 {
		m.find(failure, "dlock break KEY, when nobody relies on it.",
			"%d locks never end, such as %s", len(keys), slices.Min(keys))
	}
}

// probe acquires, renews and releases a key under the prefix, and hands it over.
func (s *store) probe(ctx context.Context, f *findings) {
	var deaf atomic.Pointer[error]
	locker := newLocker(s.client, s.prefix, goredis.WithInboxError(func(err error) { deaf.Store(&err) }))
	defer locker.Close()
	const ttl = 2 * time.Second
	key := "doctor:" + dlock.HostOwner()
	c := dlock.New(locker, dlock.WithTTL(ttl), dlock.WithOwner(dlock.HostOwner()), dlock.WithMaxWait(2*ttl))
	f.begin(7)
	if err := probeLease(ctx, c, key); err != nil {
		f.find(failure, "Look up the error on the page.", "%v", err)
		return
	}
	f.begin(8)
	err := probeHandover(ctx, c, key)
	if noInbox := deaf.Load(); noInbox != nil {
		err = fmt.Errorf("waiters get no messages: %w", *noInbox)
	}
	if err != nil {
		f.find(failure, "Let the user subscribe to the channels under the prefix.", "%v", err)
	}
}

func probeLease(ctx context.Context, c *dlock.Client, key string) error {
	const expiry = 200 * time.Millisecond
	lease, err := c.TryAcquire(ctx, key)
	if err != nil {
		return err
	}
	if err := errors.Join(lease.Renew(ctx), lease.Release()); err != nil {
		return err
	}
	if _, err := c.With(dlock.WithRenewal(false), dlock.WithTTL(expiry)).TryAcquire(ctx, key); err != nil {
		return err
	}
	time.Sleep(2 * expiry)
	if lease, err = c.TryAcquire(ctx, key); err != nil {
		return fmt.Errorf("a lease did not end: %w", err)
	}
	return lease.Release()
}

// probeHandover fails if a waiter gets the lock later than a message could bring it.
func probeHandover(ctx context.Context, c *dlock.Client, key string) error {
	const limit = time.Second // more than a message takes, and less than a waiter waits until it asks for itself
	lease, err := c.TryAcquire(ctx, key)
	if err != nil {
		return err
	}
	var granted time.Time
	var failed error
	var waiter sync.WaitGroup
	waiter.Go(func() {
		failed = c.Do(ctx, key, func(context.Context, *dlock.Lease) error {
			granted = time.Now()
			return nil
		})
	})
	time.Sleep(limit / 2) // until it waits and listens
	released := time.Now()
	err = lease.Release()
	waiter.Wait()
	err = errors.Join(err, failed)
	if took := granted.Sub(released); err == nil && took > limit {
		err = fmt.Errorf("a handover took %v: the message does not arrive", took.Round(time.Millisecond))
	}
	return err
}

func newDoctor(s *store) *cobra.Command {
	var probing, asJSON bool
	about := "Check whether a Redis is fit for locks. Nothing is written without --probe. " +
		"The exit code is 1 after warnings, and 2 after failures. The number of a finding is that of its check:\n"
	for i, check := range checks {
		about += fmt.Sprintf("\n%d. %s", i+1, check.title)
	}
	c := s.command("doctor", "check whether a Redis is fit for locks", cobra.NoArgs, func(c *cobra.Command, _ []string) error {
		all, err := s.examine(c.Context(), probing)
		if err != nil {
			return err
		}
		return tell(c.OutOrStdout(), all, probing, asJSON)
	})
	c.Long = about
	c.Flags().BoolVar(&probing, "probe", false, "acquire, renew, expire, release and hand over a lock under the prefix")
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON, one object to a line")
	return c
}

// tell writes the findings. The error has the exit code.
func tell(out io.Writer, all []finding, probed, asJSON bool) error {
	worst := good
	for _, f := range all {
		worst = max(worst, f.Level)
		if asJSON {
			encode(out, f)
			continue
		}
		what := strings.TrimPrefix(f.Server+": ", ": ") + f.Text
		fmt.Fprintf(out, "%-8s%2d  %s\n%12scheck %d: %s\n%12s%s\n%12s%s\n",
			f.Level, f.Check, safe(what), "", f.Check, f.Title, "", f.Remedy, "", f.Page)
	}
	if !asJSON && worst == good {
		how := map[bool]string{false: "without --probe, nothing was written", true: "a lock was acquired, renewed and handed over"}
		fmt.Fprintf(out, "This Redis is fit for locks (%s).\n", how[probed])
	}
	return exit{int(worst), nil}
}

// examine runs the checks on each master, and the probe if it is asked for.
func (s *store) examine(ctx context.Context, probing bool) (_ []finding, err error) {
	if err := s.client.Ping(ctx).Err(); err != nil {
		return nil, unanswered(err)
	}
	var mu sync.Mutex
	var f findings
	look := func(ctx context.Context, node *redis.Client) error {
		m := &master{client: node, prefix: s.prefix, cluster: s.cluster, probing: probing}
		m.info, _ = info(ctx, node)
		if m.cluster {
			m.next.Server = node.Options().Addr
		}
		for i, c := range checks {
			if c.look != nil {
				m.begin(i + 1)
				c.look(ctx, m)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		f.all = append(f.all, m.all...)
		return nil
	}
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, look)
	} else {
		err = look(ctx, s.client.(*redis.Client))
	}
	if probing && err == nil {
		s.probe(ctx, &f)
	}
	slices.SortStableFunc(f.all, func(a, b finding) int { return a.Check - b.Check })
	return f.all, err
}

// info reads INFO on a new connection.
func info(ctx context.Context, client *redis.Client) (map[string]string, error) {
	fresh := redis.NewClient(client.Options())
	defer fresh.Close()
	text, err := fresh.Info(ctx).Result()
	return parseInfo(text), err
}

func parseInfo(text string) map[string]string {
	values := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			values[name] = value
		}
	}
	return values
}
