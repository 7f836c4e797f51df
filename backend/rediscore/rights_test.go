package rediscore

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/redistest"
)

const securityPage = "../../docs/security.md"

var rewrite = flag.Bool("update", false, "write the rights in "+securityPage+", and the sums of the scripts")

//go:generate go test -run TestRightsPage|TestScripts -update .

// A purpose is what a Redis user may be for. Its rights are what its scripts call and what
// the client sends for it, but for the rights of the purposes before it.
type purpose struct {
	title, text string
	rule        string // beside commands
	files       string // in lua
	sent        []string
}

var purposes = []purpose{
	{
		title: "Locks that do not queue",
		text:  "This creates the user, or replaces it. It is enough for `WithQueue(false)`.",
		rule:  "reset on >PASSWORD ~app:*",
		files: "lone fence acquire-plain acquire-set proof renew release-plain",
		sent:  []string{"eval", "evalsha", "ping"},
	}, {
		title: "The queue",
		text: "Before Redis 6.2, leave out `resetchannels &app:*`. Without `+hgetall` and `+hlen`, a queue that is never empty keeps a record of each process that has waited. " +
			"Without `+pubsub|numsub`, nobody notices that a waiter's process does not listen: a lock that is handed to one that has just died " +
			"stays with it for a TTL, and a client that subscribes on a replica waits for its check-ins.",
		rule:  "resetchannels &app:*",
		files: "queue acquire enqueue checkin sweep release",
		sent:  []string{"subscribe"},
	}, {
		title: "The number of waiters",
		text:  "With this right, `Inspect` also counts the waiters.",
		files: "inspect",
	}, {
		title: "A cluster",
		text:  "Before Redis 7.0, leave out `+spublish` and `+ssubscribe`: waiters then get no messages, and check in more often.",
		files: "queue",
		sent:  []string{"asking", "cluster|shards", "cluster|slots", "command", "ssubscribe"},
	}, {
		title: "Sentinel",
		text: "Only rueidis needs it. With `SendToReplicas` it needs it on a single server with replicas, too: without it, waiters check in several times " +
			"a second. The client's user at the Sentinels themselves is another one.",
		sent: []string{"role"},
	}, {
		title: "Leases on replicas",
		text:  "For `WithReplicas`:",
		sent:  []string{"wait"},
	}, {
		title: "Client-side caching",
		text:  "Only rueidis needs it, unless `DisableCache` is set.",
		sent:  []string{"client|tracking"},
	}, {
		title: "Votes",
		text:  "Redlock needs it: its scripts ask the server for its replication ID.",
		files: "ballot vote enlist attend confirm pass",
	},
}

// clusterOnly are the commands that queue.lua chooses for shard channels.
var clusterOnly = []string{"pubsub|shardnumsub", "spublish"}

// notCommands are the words of the scripts that look like commands. PUBSUB is called with NUMSUB or with SHARDNUMSUB.
var notCommands = map[string]string{
	"NUMSUB": "pubsub|numsub", "PUBSUB": "", "SHARDNUMSUB": "pubsub|shardnumsub", "WITHSCORES": "",
}

var (
	quoted   = regexp.MustCompile(`'([A-Z]{3,})'`)
	unquoted = regexp.MustCompile(`\b(?:call|try)\(([^'].*)`)
)

// rights returns the commands of each purpose, as in an ACL rule but without the plus.
func rights() [][]string {
	all, known := make([][]string, len(purposes)), make(map[string]bool)
	for i, u := range purposes {
		needed := slices.Clone(u.sent)
		var sources strings.Builder
		for _, name := range strings.Fields(u.files) {
			sources.WriteString(luaSource(name))
		}
		for _, word := range quoted.FindAllStringSubmatch(sources.String(), -1) {
			command, ok := notCommands[word[1]]
			if !ok {
				command = strings.ToLower(word[1])
			}
			if command != "" && (u.title == "A cluster" || !slices.Contains(clusterOnly, command)) {
				needed = append(needed, command)
			}
		}
		slices.Sort(needed)
		all[i] = slices.DeleteFunc(slices.Compact(needed), func(r string) bool { return known[r] })
		for _, r := range all[i] {
			known[r] = true
		}
	}
	return all
}

// setUser returns the words of the command that gives the user dlock the rights for a purpose.
func setUser(u purpose, rights []string) []string {
	command := append([]string{"ACL", "SETUSER", "dlock"}, strings.Fields(u.rule)...)
	for _, r := range rights {
		command = append(command, "+"+r)
	}
	return command
}

// TestRightsPage compares the sections of the page that have the commands; with -update it writes them.
func TestRightsPage(t *testing.T) {
	var want strings.Builder
	for i, r := range rights() {
		fmt.Fprintf(&want, "### %s\n\n%s\n\n```\n%s\n```\n\n", purposes[i].title, purposes[i].text, strings.Join(setUser(purposes[i], r), " "))
	}
	page, err := os.ReadFile(securityPage)
	require.NoError(t, err)
	sections := regexp.MustCompile(`(?s)### .*?\n\n(## )`)
	if *rewrite {
		page = sections.ReplaceAll(page, []byte(strings.ReplaceAll(want.String(), "$", "$$")+"$1"))
		require.NoError(t, os.WriteFile(securityPage, page, 0o644))
	}
	require.Equal(t, want.String()+"## ", sections.FindString(string(page)), "%s is out of date: go generate ./backend/rediscore", securityPage)
}

// The commands that the scripts call are quoted words, or a variable that is given such words.
func TestCommandsAreQuoted(t *testing.T) {
	for _, script := range Scripts {
		for _, m := range unquoted.FindAllStringSubmatch(script.Source, -1) {
			require.Regexp(t, `^(command, |serve, '')`, m[1])
		}
	}
}

// TestDryRun asks a server what a user may do who has the rights for some purposes: these commands and
// no others, with the keys and channels of the prefix and no others.
func TestDryRun(t *testing.T) {
	t.Parallel()
	conn, err := redis.Dial("tcp", redistest.Start(t).Addr())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	do := func(args ...string) any {
		reply, err := conn.Do(args[0], redis.Args{}.AddFlat(args[1:])...)
		require.NoError(t, err, args)
		return reply
	}
	if _, err := conn.Do("ACL", "DRYRUN", "default", "PING"); err != nil {
		t.Skipf("ACL DRYRUN came with Redis 7.0: %v", err)
	}
	dryRun := func(args ...string) string {
		verdict, _ := redis.String(do(append([]string{"ACL", "DRYRUN", "dlock"}, args...)...), nil)
		return verdict
	}
	commands := commandsOf(do("COMMAND").([]any))
	mayUse := make(map[string]bool)
	for i, r := range rights() {
		do(setUser(purposes[i], r)...)
		for _, command := range r {
			require.Contains(t, commands, command)
			mayUse[command] = true
		}
		mayListen := mayUse["subscribe"]
		for name, c := range commands {
			verdict := func(key, channel string) string { return dryRun(c.call(key, channel)...) }
			container, _, _ := strings.Cut(name, "|")
			if !mayUse[name] && !mayUse[container] && !c.forAll {
				require.Contains(t, verdict("app:k", "app:c"), "no permissions to run", "%s: %s", purposes[i].title, name)
				continue
			}
			if c.forAll || c.channel && !mayListen {
				continue
			}
			require.Equal(t, "OK", verdict("app:k", "app:c"), name)
			if c.key || c.channel {
				require.Regexp(t, "no permissions to access the '(foreign|ap)' (key|channel)", verdict("foreign", "ap"), name)
			}
		}
	}
	for prefix, pattern := range map[string]string{"app:": "app:*", "my{app:": "*my{app:*"} {
		do("ACL", "SETUSER", "dlock", "resetkeys", "~"+pattern, "resetchannels", "&"+pattern)
		for _, key := range []string{"", "k", "{x}", "}", "a\nb"} {
			names := newLockKeys(prefix, key, false)
			for _, name := range names.texts {
				require.Equal(t, "OK", dryRun("GET", name))
			}
			for _, inbox := range []string{prefix + inboxSuffix + "x", companion(prefix, int(names.slot), inboxSuffix+"x")} {
				require.Equal(t, "OK", dryRun("SUBSCRIBE", inbox))
			}
		}
	}
}

// A command is one of the server's.
type command struct {
	name         string
	words        int // at least
	key, channel bool
	forAll       bool // also without a right to it
}

// commandsOf reads the reply to COMMAND, https://redis.io/docs/latest/commands/command/.
func commandsOf(infos []any) map[string]command {
	all := make(map[string]command)
	for _, info := range infos {
		info := info.([]any)
		name, arity, first := string(info[0].([]byte)), info[1].(int64), info[3].(int64)
		if subcommands := info[9].([]any); len(subcommands) > 0 {
			maps.Copy(all, commandsOf(subcommands))
			if arity != -1 {
				continue // it is none by itself
			}
		}
		_, isChannel := map[string]bool{"publish": true, "spublish": true, "subscribe": true, "ssubscribe": true}[name]
		all[name] = command{
			name:    name,
			words:   int(max(arity, -arity)),
			key:     first > 0 && !isChannel || strings.HasPrefix(name, "eval"),
			channel: isChannel,
			forAll:  slices.Contains(info[2].([]any), any("no_auth")),
		}
	}
	return all
}

// call returns a call of the command.
func (c command) call(key, channel string) []string {
	args := strings.Split(c.name, "|")
	switch {
	case strings.HasPrefix(c.name, "eval"):
		return append(args, "x", "1", key)
	case c.channel:
		args = append(args, channel)
	case c.key:
		args = append(args, key)
	}
	for len(args) < c.words {
		args = append(args, key)
	}
	return args
}
