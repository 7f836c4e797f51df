package world

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A rule is one of the protocol, and a history that breaks a property when the code does not keep it.
// The numbers are those of internal/handovermodel.
type rule struct {
	without []int
	text    string
	broken  property
	config  *config
}

func rules() []rule {
	return []rule{
		{[]int{1}, "a check-in creates and extends no lease", loses, base(3).long().after(bWaits[:len(bWaits)-1]...)},
		{[]int{2, 17}, "no command shortens a lease", loses, base(3).long().after(bIsLate...)},
		{[]int{3}, "the grant of a message is dated by the server's clock", overlap, base(2).again().after(aTriesAgain...)},
		{[]int{3}, "the grant of a message is dated by the server's clock", loses, base(2)},
		{[]int{4}, "before the clock is known, a message is only a hint", loses, base(2).after(bIsHanded...)},
		{[]int{5, 29}, "a late grant is tried again, not renewed; an old message is only a hint", order, base(3).again().after(aTakesIt...)},
		{[]int{6}, "a token that was given up is not used again", overlap, base(2, cut).after("A begins", "request: acquire A1", "B begins", "request: acquire B1", "reply: acquire B1", "much time passes", "reply: acquire A1", "fails: request: enqueue B2")},
		{[]int{7}, "the inbox does not release a grant that was returned", loses, base(2).after(bIsHanded...)},
		{[]int{7}, "the inbox does not release a grant that was passed on", loses, base(2, detach).after(bIsHanded...)},
		{[]int{8}, "the inbox releases a grant that is not wanted any more", left, base(2, cancel, forget).after(bWaits...)},
		{[]int{9}, "waiters check in", left, base(2, drop)},
		{[]int{10}, "a waiter that is not in the queue goes back", left, base(2)},
		{[]int{15}, "an owed release is repeated", left, base(2, cancel)},
		{[]int{17}, "\"not queued\" forgets the clock", left, base(3).long().after(bIsLate...)},
		{[]int{18}, "\"held, now free\" does not end the owed release of a token that was in several commands", left, base(3, cancel).after(bWaits...)},
		{[]int{19}, "an owed release ends with one that was sent when its time had run out", left, base(2, cancel).after("A begins", "A cancels")},
		{[]int{20}, "a token whose enqueue got no answer is given up", left, base(2, cut)},
		{[]int{21}, "the answer to a call that was sent before the inbox changed does not set the clock", loses, base(2, ahead).after(join(bWaits, anotherServer...)...)},
		{[]int{22}, "a wait notices that the inbox has changed before it reads a message", loses, base(2, ahead, pause).lasting(5 * time.Second).after(bStandsStill...)},
		{[]int{23}, "a fence is not below the server's time", order, base(2, wipe)},
		{[]int{24}, "a lease that was passed on in a line owes no release", loses, base(2).lines()},
		{[]int{25}, "the next in line has the deadline of the grant", loses, base(2).lines().lasting(5 * time.Second)},
		{[]int{26}, "a call that has only removed dead waiters is repeated", left, base(2, subLoss)},
	}
}

// base is a configuration without wrongs. The TTL is less than the time after which a call fails.
func base(depth int, wrongs ...wrong) *config {
	c := &config{setup: setup{kind: queues, ttl: 3 * time.Second, turns: []int{0}}, actors: []int{0, 1}, rounds: 1, tick: 1300 * time.Millisecond, depth: depth, faults: map[wrong]int{}}
	for _, f := range wrongs {
		c.faults[f]++
	}
	return c
}

// long has a TTL that is longer than that of a lease that was waited for.
func (c *config) long() *config                   { c.ttl, c.tick = 10*time.Second, 2500*time.Millisecond; return c }
func (c *config) lasting(d time.Duration) *config { c.ttl = d; return c }
func (c *config) again() *config                  { c.rounds = 2; return c }
func (c *config) lines() *config {
	c.actors, c.turns = []int{1, 0, 0}, []int{2}
	return c.after("B begins", "request: acquire B1", "reply: acquire B1", "A begins", "A' begins")
}
func (c *config) after(begin ...string) *config { c.begin = begin; return c }

// How histories begin: A holds the key, B waits, A hands the key over.
var (
	bWaits = []string{
		"A begins", "request: acquire A1", "reply: acquire A1", "B begins", "request: acquire B1", "reply: acquire B1",
		"request: enqueue B2", "request: subscribe B", "reply: enqueue B2", "reply: subscribe B", "request: checkin B2",
	}
	bIsHanded     = join(bWaits, "A releases", "request: release A1")
	aTriesAgain   = join(bWaits, "reply: checkin B2", "A releases", "request: release A1", "reply: release A1", "much time passes", "A begins")
	anotherServer = []string{"another server", "news", "time passes", "request: subscribe B", "reply: subscribe B", "A releases", "request: release A1"}
	bStandsStill  = append(join(bWaits, "reply: checkin B2", "B will pause", "time passes", "time passes"), anotherServer...)
	bIsLate       = join(bWaits, "reply: checkin B2", "A releases", "request: release A1", "much time passes")
	aTakesIt      = join(bWaits, "reply: checkin B2", "A releases", "request: release A1", "reply: release A1", "much time passes", "request: checkin B2", "reply: checkin B2", "A begins")
)

func join(begin []string, more ...string) []string {
	return append(begin[:len(begin):len(begin)], more...)
}

// A change takes a rule out: it replaces a text that is in a file once. In the new text, without says
// whether the rule is to be left out.
type change struct{ file, old, new string }

const (
	waitGo     = "backend/rediscore/wait.go"
	deliveryGo = "backend/rediscore/delivery.go"
)

func changes() []change {
	return []change{
		{"backend/rediscore/scripts.go", "Source: strings.Join(append(parts, end), \"\\n\")", "Source: planted(strings.Join(append(parts, end), \"\\n\"))"},
		{waitGo, "since := w.sent.Add(time.Duration(h.time-w.clock)*time.Microsecond - time.Millisecond)\n",
			"since := w.sent.Add(time.Duration(h.time-w.clock)*time.Microsecond - time.Millisecond)\nif without(3) {\nsince = time.Now()\n}\n"},
		{waitGo, "case w.clock != 0 && h.time > w.clock:",
			"case w.clock == 0 && without(4):\nreturn dlock.Attempt{Acquired: true, Since: time.Now(), Fence: h.fence}, nil\ncase w.clock != 0 && (h.time > w.clock || without(29)):"},
		{waitGo, "\tw.timer.Reset(d)\n", "if d == 0 || !without(9) {\nw.timer.Reset(d)\n}\n"},
		{waitGo, "w.queued, w.clock, w.returned = false, 0, true\n",
			"if without(10) {\nw.schedule(checkInPeriod)\nreturn dlock.Attempt{}, nil\n}\nif w.queued, w.returned = false, true; !without(17) {\nw.clock = 0\n}\n"},
		{waitGo, "case w.ticket == \"\", w.unsure,", "case !without(20) && (w.ticket == \"\" || w.unsure),"},
		{waitGo, "\tif !w.again { // else", "\tif !w.again || without(21) { // else"},
		{waitGo, "\tif m.changed {", "\tif m.changed && !without(22) {"},
		{deliveryGo, "case r.released, r.given:", "case (r.released || r.given || without(7)) && !without(8):"},
		{"backend/rediscore/send.go", "\treturn sent, r.Reply, r.Err\n", "if r.Reply == unswept {\nr.Reply = int64(1)\n}\nreturn sent, r.Reply, r.Err\n"},
		{"backend/rediscore/send.go", "\treturn r.Reply == unswept\n", "return r.Reply == unswept && !without(26)\n"},
		{"acquire.go", "answer, err = l.TryAcquire(ctx, a.key, a.token, ttl)", `if a.late && without(5) {
			answer = Attempt{Fence: a.lateFence}
			answer.Acquired, err = l.Renew(ctx, a.key, a.token, ttl)
			return
		}
		answer, err = l.TryAcquire(ctx, a.key, a.token, ttl)`},
		{"acquire.go", "a.lease, a.left, a.late, a.err = nil, true, !again, errLate\n", "a.lease, a.left, a.late, a.err, a.lateFence = nil, true, !again, errLate, answer.Fence\n"},
		{"acquire.go", "type acquisition struct {\n", "type acquisition struct {\nlateFence int64\n"},
		{"acquire.go", "\ta.token, a.left, a.place, a.inFlight, a.later = \"\", false, false, 0, nil\n", "if a.left, a.place, a.inFlight, a.later = false, false, 0, nil; !without(6) {\na.token = \"\"\n}\n"},
		{"release.go", "err == nil && (sure || held && r.inFlight < several || r.inFlight == 0)", "err == nil && (sure || held && (r.inFlight < several || without(18)) || r.inFlight == 0 || without(15))"},
		{"internal/owed/owed.go", "ended && (c.ready != nil || !c.sent.Before(c.until)):", "ended && (c.ready != nil || !c.sent.Before(c.until) || without(19)):"},
		{"lease.go", "l.release.settled = l.leaveBlockLocked(err == ErrReleased)", "l.release.settled = l.leaveBlockLocked(err == ErrReleased) && !without(24)"},
		{"turns.go", "\tnext.step, next.renewAt = ", "if without(25) {\nnext.extendLocked(time.Now(), l.options.firstTTL())\n}\nnext.step, next.renewAt = "},
	}
}

// switches are files that the packages get with the changes.
var switches = map[string]string{
	"without.go": `package dlock

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Without reports whether a rule is to be left out.
func Without(rule int) bool { return slices.Contains(out, fmt.Sprint(rule)) }

func without(rule int) bool { return Without(rule) }

var out = strings.Split(os.Getenv("DLOCK_WITHOUT"), ",")
`,
	"backend/rediscore/without.go": `package rediscore

import (
	"strings"

	"github.com/dlock-go/dlock"
)

func without(rule int) bool { return dlock.Without(rule) }

func planted(source string) string {
	for _, e := range luaEdits {
		if without(e.rule) {
			source = strings.ReplaceAll(source, e.old, e.new)
		}
	}
	return source
}
`,
	"internal/owed/without.go": `package owed

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

func without(rule int) bool {
	return slices.Contains(strings.Split(os.Getenv("DLOCK_WITHOUT"), ","), fmt.Sprint(rule))
}
`,
}

var luaChanges = []struct{ rule, file, old, new string }{
	{"1", "checkin.lua", "elseif not held then\n", "end\n    call('PEXPIRE', KEYS[1], 5000)\n    if not held then\n"},
	{"2", "fence.lua", "if remaining >= 0 and remaining < tonumber(ttl) then", "if true then"},
	{"23", "fence.lua", "return count(math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 8, least))", "return count((tonumber(redis.call('GET', KEYS[2])) or 0) + 8)"},
	{"26", "queue.lua", "for batch = 0, 50 do", "for batch = 0, 0 do"},
}

// TestChanges fails if a text is not found once that a change of TestRules replaces.
func TestChanges(t *testing.T) {
	overlay(t)
	for _, c := range luaChanges {
		text, err := os.ReadFile(filepath.Join("../../../backend/rediscore/lua", c.file))
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(text), c.old), "%s: %q", c.file, c.old)
	}
}

// TestRules takes each rule out of the code, and demands that the schedules show what breaks then.
func TestRules(t *testing.T) {
	if !*large {
		t.Skip("-large takes the rules out")
	}
	program := filepath.Join(t.TempDir(), "world.test")
	out, err := exec.Command("go", "test", "-c", "-vet=off", "-o", program, "-overlay", overlay(t), ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for i, r := range rules() {
		t.Run(fmt.Sprintf("%d %s", r.without[0], r.text), func(t *testing.T) {
			command := exec.Command(program, "-test.run", "TestRule$", "-test.v", "-large")
			command.Env = append(os.Environ(), fmt.Sprint("DLOCK_RULE=", i), "DLOCK_WITHOUT="+strings.Trim(strings.ReplaceAll(fmt.Sprint(r.without), " ", ","), "[]"))
			out, err := command.CombinedOutput()
			if text := string(out); err == nil || !strings.Contains(text, string(r.broken)+":") {
				t.Errorf("nothing breaks %s: %s", r.broken, text)
			} else {
				t.Log(text)
			}
		})
	}
}

// TestRule runs the schedules for a rule, in the program of TestRules.
func TestRule(t *testing.T) {
	var i int
	if _, err := fmt.Sscan(os.Getenv("DLOCK_RULE"), &i); err != nil {
		t.Skip("a part of TestRules")
	}
	r := rules()[i]
	r.config.only = r.broken
	if result := explore(t, r.config); len(result.failures) > 0 {
		t.Error(result)
	} else {
		t.Log(result)
	}
}

// overlay writes the changed files, and the file that says so.
func overlay(t *testing.T) string {
	dir := t.TempDir()
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	replace := map[string]string{}
	write := func(path, text string) {
		to := cmp.Or(replace[path], filepath.Join(dir, fmt.Sprint(len(replace), ".go")))
		require.NoError(t, os.WriteFile(to, []byte(text), 0o600))
		replace[path] = to
	}
	for file, text := range switches {
		write(filepath.Join(root, file), text)
	}
	var lua strings.Builder
	for _, c := range luaChanges {
		fmt.Fprintf(&lua, "{%s, %q, %q},\n", c.rule, c.old, c.new)
	}
	without := filepath.Join(root, "backend/rediscore/without.go")
	write(without, switches["backend/rediscore/without.go"]+"\nvar luaEdits = []struct {\nrule int\nold, new string\n}{\n"+lua.String()+"}\n")
	for _, c := range changes() {
		path := filepath.Join(root, c.file)
		before, err := os.ReadFile(cmp.Or(replace[path], path))
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(before), c.old), "%s: %q", c.file, c.old)
		write(path, strings.Replace(string(before), c.old, c.new, 1))
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	file := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	return file
}
