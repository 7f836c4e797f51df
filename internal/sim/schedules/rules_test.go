package schedules

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/mutants"
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
		{[]int{1}, "a check-in creates and extends no lease", p3, base(3).long().after(bWaits[:len(bWaits)-1]...)},
		{[]int{2, 17}, "no command shortens a lease", p3, base(3).long().after(bIsLate...)},
		{[]int{3}, "the grant of a message is dated by the server's clock", p1, base(2).again().after(aTriesAgain...)},
		{[]int{3}, "the grant of a message is dated by the server's clock", p3, base(2)},
		{[]int{4}, "before the clock is known, a message is only a hint", p3, base(2).after(bIsHanded...)},
		{[]int{5, 29}, "a late grant is tried again, not renewed; an old message is only a hint", p2, base(3).again().after(aTakesIt...)},
		{[]int{6}, "a token that was given up is not used again", p1, base(2, cut).after("A begins", "request: try A1", "B begins", "request: try B1", "reply: try B1", "much time passes", "reply: try A1", "fails: request: enqueue B2")},
		{[]int{7}, "the inbox does not release a grant that was returned", p3, base(2).after(bIsHanded...)},
		{[]int{7}, "the inbox does not release a grant that was passed on", p3, base(2, detach).after(bIsHanded...)},
		{[]int{8}, "the inbox releases a grant that is not wanted any more", p4, base(2, cancel, forget).after(bWaits...)},
		{[]int{9}, "waiters check in", p4, base(2, drop)},
		{[]int{10}, "a waiter that is not in the queue goes back", p4, base(2)},
		{[]int{15}, "an owed release is repeated", p4, base(2, cancel)},
		{[]int{17}, "\"not queued\" forgets the clock", p4, base(3).long().after(bIsLate...)},
		{[]int{18}, "\"held, now free\" does not end the owed release of a token that was in several commands", p4, base(3, cancel).after(bWaits...)},
		{[]int{19}, "an owed release ends with one that was sent when its time had run out", p4, base(2, cancel).after("A begins", "A cancels")},
		{[]int{20}, "a token whose enqueue got no answer is given up", p4, base(2, cut)},
		{[]int{21}, "the answer to a call that was sent before the inbox changed does not set the clock", p3, base(2, failover).after(join(bWaits, anotherServer...)...)},
		{[]int{22}, "a wait notices that the inbox has changed before it reads a message", p3, base(2, failover, pause).lasting(5 * time.Second).after(bStandsStill...)},
		{[]int{23}, "a fence is not below the server's time", p2, base(2, wipe)},
		{[]int{24}, "a lease that was passed on in a line owes no release", p3, base(2).lines()},
		{[]int{25}, "the next in line has the deadline of the grant", p3, base(2).lines().lasting(5 * time.Second)},
		{[]int{26}, "a call that has only removed dead waiters is repeated", p4, base(2, subLoss)},
	}
}

// base is a configuration without faults. The TTL is less than the time after which a call fails.
func base(depth int, faults ...fault) *config {
	c := &config{actors: []int{0, 1}, rounds: 1, ttl: 3 * time.Second, tick: 1300 * time.Millisecond, depth: depth, faults: map[fault]int{}}
	for _, f := range faults {
		c.faults[f]++
	}
	return c
}

// long has a TTL that is longer than that of a lease that was waited for.
func (c *config) long() *config                   { c.ttl, c.tick = 10*time.Second, 2500*time.Millisecond; return c }
func (c *config) lasting(d time.Duration) *config { c.ttl = d; return c }
func (c *config) again() *config                  { c.rounds = 2; return c }
func (c *config) lines() *config {
	c.actors, c.turns = []int{1, 0, 0}, 2
	return c.after("B begins", "request: try B1", "reply: try B1", "A begins", "A' begins")
}
func (c *config) after(begin ...string) *config { c.begin = begin; return c }

// How histories begin: A holds the key, B waits, A hands the key over.
var (
	bWaits = []string{
		"A begins", "request: try A1", "reply: try A1", "B begins", "request: try B1", "reply: try B1",
		"request: enqueue B2", "request: subscribe B", "reply: enqueue B2", "reply: subscribe B", "request: check-in B2",
	}
	bIsHanded     = join(bWaits, "A releases", "request: release A1")
	aTriesAgain   = join(bWaits, "reply: check-in B2", "A releases", "request: release A1", "reply: release A1", "much time passes", "A begins")
	anotherServer = []string{"another server", "news", "time passes", "request: subscribe B", "reply: subscribe B", "A releases", "request: release A1"}
	bStandsStill  = append(join(bWaits, "reply: check-in B2", "B will pause", "time passes", "time passes"), anotherServer...)
	bIsLate       = join(bWaits, "reply: check-in B2", "A releases", "request: release A1", "much time passes")
	aTakesIt      = join(bWaits, "reply: check-in B2", "A releases", "request: release A1", "reply: release A1", "much time passes", "request: check-in B2", "reply: check-in B2", "A begins")
)

func join(begin []string, more ...string) []string {
	return append(begin[:len(begin):len(begin)], more...)
}

const (
	waitGo     = "backend/rediscore/wait.go"
	deliveryGo = "backend/rediscore/delivery.go"
)

// changes take rules out of the code: in the new text, without says whether a rule is to be left out.
func changes() []mutants.Edit {
	return []mutants.Edit{
		{File: waitGo, Old: "since := w.sent.Add(time.Duration(h.time-w.clock)*time.Microsecond - time.Millisecond)\n",
			New: "since := w.sent.Add(time.Duration(h.time-w.clock)*time.Microsecond - time.Millisecond)\nif without(3) {\nsince = time.Now()\n}\n"},
		{File: waitGo, Old: "case w.clock != 0 && h.time > w.clock:",
			New: "case w.clock == 0 && without(4):\nreturn dlock.Attempt{Acquired: true, Since: time.Now(), Fence: h.fence}, nil\ncase w.clock != 0 && (h.time > w.clock || without(29)):"},
		{File: waitGo, Old: "\tw.timer.Reset(d)\n", New: "if d == 0 || !without(9) {\nw.timer.Reset(d)\n}\n"},
		{File: waitGo, Old: "w.queued, w.clock, w.returned = false, 0, true\n",
			New: "if without(10) {\nw.schedule(checkInPeriod)\nreturn dlock.Attempt{}, nil\n}\nif w.queued, w.returned = false, true; !without(17) {\nw.clock = 0\n}\n"},
		{File: waitGo, Old: "case w.ticket == \"\", w.unsure,", New: "case !without(20) && (w.ticket == \"\" || w.unsure),"},
		{File: waitGo, Old: "\tif !w.again { // else", New: "\tif !w.again || without(21) { // else"},
		{File: waitGo, Old: "\tif m.changed {", New: "\tif m.changed && !without(22) {"},
		{File: deliveryGo, Old: "case r.released, r.given:", New: "case (r.released || r.given || without(7)) && !without(8):"},
		{File: "backend/rediscore/send.go", Old: "\treturn sent, r.Reply, r.Err\n", New: "if r.Reply == unswept {\nr.Reply = int64(1)\n}\nreturn sent, r.Reply, r.Err\n"},
		{File: "backend/rediscore/send.go", Old: "\treturn r.Reply == unswept\n", New: "return r.Reply == unswept && !without(26)\n"},
		{File: "acquire.go", Old: "answer, err = a.client.keeper.locker.TryAcquire(ctx, a.key, a.token, ttl)", New: `if a.late && without(5) {
			answer = Attempt{Fence: a.lateFence}
			answer.Acquired, err = a.client.keeper.locker.Renew(ctx, a.key, a.token, ttl)
			return answer, err
		}
		answer, err = a.client.keeper.locker.TryAcquire(ctx, a.key, a.token, ttl)`},
		{File: "acquire.go", Old: "a.lease, a.left, a.late, a.err = nil, true, !again, errLate\n", New: "a.lease, a.left, a.late, a.err, a.lateFence = nil, true, !again, errLate, answer.Fence\n"},
		{File: "acquire.go", Old: "type acquisition struct {\n", New: "type acquisition struct {\nlateFence int64\n"},
		{File: "acquire.go", Old: "\ta.token, a.left, a.place, a.inFlight, a.later = \"\", false, false, 0, nil\n", New: "if a.left, a.place, a.inFlight, a.later = false, false, 0, nil; !without(6) {\na.token = \"\"\n}\n"},
		{File: "release.go", Old: "err == nil && (sure || held && r.inFlight < several || r.inFlight == 0)", New: "err == nil && (sure || held && (r.inFlight < several || without(18)) || r.inFlight == 0 || without(15))"},
		{File: "internal/owed/owed.go", Old: "ended && (c.ready != nil || !c.sent.Before(c.until)):", New: "ended && (c.ready != nil || !c.sent.Before(c.until) || without(19)):"},
		{File: "lease.go", Old: "l.release.settled = l.leaveBlockLocked(err == ErrReleased)", New: "l.release.settled = l.leaveBlockLocked(err == ErrReleased) && !without(24)"},
		{File: "turns.go", Old: "\tnext.step, next.renewAt = ", New: "if without(25) {\nnext.extendLocked(time.Now(), l.options.firstTTL())\n}\nnext.step, next.renewAt = "},
	}
}

// switches are files that the packages get with the changes.
var switches = []mutants.Edit{
	{File: "without.go", New: `package dlock

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
`},
	{File: "backend/rediscore/without.go", New: `package rediscore

import "github.com/dlock-go/dlock"

func without(rule int) bool { return dlock.Without(rule) }
`},
	{File: "internal/owed/without.go", New: `package owed

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

func without(rule int) bool {
	return slices.Contains(strings.Split(os.Getenv("DLOCK_WITHOUT"), ","), fmt.Sprint(rule))
}
`},
}

var luaChanges = []struct{ rule, file, old, new string }{
	{"1", "checkin.lua", "elseif not held then\n", "end\n    call('PEXPIRE', KEYS[1], 5000)\n    if not held then\n"},
	{"2", "fence.lua", "if remaining >= 0 and remaining < tonumber(ttl) then", "if true then"},
	{"23", "fence.lua", "return count(math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 8, least))", "return count((tonumber(redis.call('GET', KEYS[2])) or 0) + 8)"},
	{"23", "lone.lua", "if free then", "if false then"},
	{"26", "queue.lua", "for batch = 0, 50 do", "for batch = 0, 0 do"},
}

// source is the source of a script, without the rules that are left out.
func source(c rediscore.Call) string {
	for _, r := range luaChanges {
		if strings.Contains(","+os.Getenv("DLOCK_WITHOUT")+",", ","+r.rule+",") {
			c.Script.Source = strings.ReplaceAll(c.Script.Source, r.old, r.new)
		}
	}
	return c.Script.Source
}

// TestChanges fails if a text is not found once that a change of TestRules replaces.
func TestChanges(t *testing.T) {
	all := changes()
	for _, c := range luaChanges {
		all = append(all, mutants.Edit{File: "backend/rediscore/lua/" + c.file, Old: c.old, New: c.new})
	}
	_, err := mutants.Apply(all)
	require.NoError(t, err)
}

// TestRules takes each rule out of the code, and demands that the schedules show what breaks then.
func TestRules(t *testing.T) {
	if !large {
		t.Skip("DLOCK_MODEL is not large")
	}
	const folder = "internal/sim/schedules"
	program, err := mutants.Build(t.Context(), t.TempDir(), folder, append(changes(), switches...))
	require.NoError(t, err)
	for i, r := range rules() {
		t.Run(fmt.Sprintf("%d %s", r.without[0], r.text), func(t *testing.T) {
			out, err := mutants.Tests{
				In: folder, Run: "^TestRule$", Args: []string{"-test.v"}, Says: string(r.broken) + ":",
				Env: []string{fmt.Sprint("DLOCK_RULE=", i), "DLOCK_WITHOUT=" + strings.Trim(strings.ReplaceAll(fmt.Sprint(r.without), " ", ","), "[]")},
			}.Fail(t.Context(), program)
			require.NoError(t, err, out)
			t.Log(out)
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
	if result := explore(t, r.config); result.broken != "" {
		t.Error(result)
	} else {
		t.Log(result)
	}
}
