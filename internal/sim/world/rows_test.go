package world

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/mutants"
)

// A row is a rule that is taken out of the code that ships, or another fault that is planted in it, and what finds it.
type row struct {
	number int // of a rule in docs/handover.md; 201 is the first in docs/redlock.md; others are faults that the library had once, or could have
	text   string
	edits  []mutants.Edit // in which without(number) says whether the fault is planted, and when(number, faulty, right) is a value

	// What finds it: systems of a kind, or schedules, with a property.
	kind   kind
	seeds  int // of that kind, within which it must be found
	broken property
	config *config
	shape  func(*plan) // makes plans like those in which it shows; or nil
	clause string      // the folder, the test and the name of its check
}

// A find is what has found a fault: a seed, or the deviations of a schedule.
type find struct {
	Seed uint64      `json:",omitempty"`
	At   []deviation `json:",omitempty"`
}

func edit(file, old, new string) mutants.Edit { return mutants.Edit{File: file, Old: old, New: new} }

func systems(number int, text string, kind kind, seeds int, edits ...mutants.Edit) row {
	return row{number: number, text: text, kind: kind, seeds: seeds, edits: edits}
}

func schedules(number int, text string, broken property, c *config, edits ...mutants.Edit) row {
	return row{number: number, text: text, broken: broken, config: c, edits: edits}
}

func (r row) name() string {
	return fmt.Sprint(r.number, " ", r.text, ", ", r.broken, r.kind, r.clause)
}

const (
	waitGo     = "backend/rediscore/wait.go"
	deliveryGo = "backend/rediscore/delivery.go"
	sendGo     = "backend/rediscore/send.go"
	acquireGo  = "acquire.go"
	owedGo     = "internal/owed/owed.go"
	lua        = "backend/rediscore/lua/"
)

// rows are in the order in which their edits are made. One other fault is not found: a grant that is dated by its
// receipt (in 300 systems with queues).
func rows() []row {
	return append(slices.Concat(majorityRows(), clauseRows()),

		schedules(1, "a check-in creates and extends no lease", loses, base(2).long().after(bChecksIn...),
			edit(lua+"checkin.lua", "elseif not held then\n", "end\n    call('PEXPIRE', KEYS[1], 5000)\n    if not held then\n")),
		schedules(2, "no command shortens a lease", loses, base(3).long().after(bIsLate...),
			edit(lua+"fence.lua", "if remaining >= 0 and remaining < tonumber(ttl) then", "if true then")),
		schedules(3, "the grant of a message is dated by the server's clock", overlap, base(2).again().after(aTriesAgain...),
			edit(waitGo, "since := w.sent.Add(time.Duration(h.time-w.clock)*time.Microsecond - time.Millisecond)\n", "since := w.sent.Add(time.Duration(h.time-w.clock)*time.Microsecond - time.Millisecond)\nsince = when(3, time.Now(), since)\n")),
		schedules(3, "the grant of a message is dated by the server's clock", loses, base(2)),
		schedules(4, "before the clock is known, a message is only a hint", loses, base(2).after(bIsHanded...),
			edit(waitGo, "case w.clock != 0 && h.time > w.clock:", "case w.clock == 0 && without(4):\nreturn dlock.Attempt{Acquired: true, Since: time.Now(), Fence: h.fence}, nil\ncase w.clock != 0 && (h.time > w.clock || without(5)):")),
		schedules(5, "a late grant is tried again, not renewed; an old message is only a hint (29)", order, base(3).again().after(aTakesIt...),
			edit(acquireGo, "answer, err = a.client.keeper.locker.TryAcquire(ctx, a.key, a.token, ttl)", `if a.late && without(5) {
			answer = Attempt{Fence: a.lateFence}
			answer.Acquired, err = a.client.keeper.locker.Renew(ctx, a.key, a.token, ttl)
			return answer, err
		}
		answer, err = a.client.keeper.locker.TryAcquire(ctx, a.key, a.token, ttl)`),
			edit(acquireGo, "a.lease, a.left, a.late, a.err = nil, true, !again, errLate\n", "a.lease, a.left, a.late, a.err, a.lateFence = nil, true, !again, errLate, answer.Fence\n"),
			edit(acquireGo, "type acquisition struct {\n", "type acquisition struct {\nlateFence int64\n")),
		schedules(6, "a token that was given up is not used again", overlap, base(2, cut).after("A begins", "request: acquire A1", "B begins", "request: acquire B1", "reply: acquire B1", "much time passes", "reply: acquire A1", "fails: request: enqueue B2"),
			edit(acquireGo, "a.claim = claim{} }", "if a.claim.left, a.place, a.inFlight, a.later = false, false, 0, nil; !without(6) {\na.token = \"\"\n}\n}")),
		schedules(7, "the inbox does not release a grant that was returned", loses, base(2).after(bIsHanded...),
			edit(deliveryGo, "case r.released, r.given:", "case (r.released || r.given || without(7)) && !without(8):")),
		schedules(7, "the inbox does not release a grant that was passed on", loses, base(2, detach).after(bIsHanded...)),
		schedules(8, "the inbox releases a grant that is not wanted any more", left, base(2, cancel, forget).after(bWaits...)),
		schedules(9, "waiters check in", left, base(2, drop),
			edit(waitGo, "\tw.timer.Reset(d)\n", "if d == 0 || !without(9) {\nw.timer.Reset(d)\n}\n")),
		schedules(10, "a waiter that is not in the queue goes back", left, base(2),
			edit(waitGo, "w.queued, w.clock, w.returned = false, 0, true\n", "if without(10) {\nw.schedule(checkInPeriod)\nreturn dlock.Attempt{}, nil\n}\nif w.queued, w.returned = false, true; !without(17) && !without(2) {\nw.clock = 0\n}\n")),
		schedules(15, "an owed release is repeated", left, base(2, cancel),
			edit("release.go", "err == nil && (sure || held && r.inFlight < several || r.inFlight == 0)", "err == nil && (sure || held && (r.inFlight < several || without(18)) || r.inFlight == 0 || without(15))")),
		schedules(17, "\"not queued\" forgets the clock", left, base(3).long().after(bIsLate...)),
		schedules(18, "\"held, now free\" does not end the owed release of a token that was in several commands", left, base(3, cancel).after(bWaits...)),
		schedules(19, "an owed release ends with one that was sent when its time had run out", left, base(2, cancel).after("A begins", "A cancels"),
			edit(owedGo, "ended && (c.ready != nil || !c.sent.Before(c.until)):", "ended && (c.ready != nil || !c.sent.Before(c.until) || without(19)):")),
		schedules(20, "a token whose enqueue got no answer is given up", left, base(2, cut),
			edit(waitGo, "case w.ticket == \"\", w.unsure,", "case !without(20) && (w.ticket == \"\" || w.unsure),")),
		schedules(21, "the answer to a call that was sent before the inbox changed does not set the clock", loses, base(2, ahead).after(join(bWaits, anotherServer...)...),
			edit(waitGo, "\tif !w.again { // else", "\tif !w.again || without(21) { // else")),
		schedules(22, "a wait notices that the inbox has changed before it reads a message", loses, base(2, ahead, pause).lasting(5*time.Second).after(bStandsStill...),
			edit(waitGo, "\tif m.changed {", "\tif m.changed && !without(22) {")),
		schedules(23, "a fence is not below the server's time", order, base(2, wipe),
			edit(lua+"fence.lua", "return count(math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 8, least))", "return count((tonumber(redis.call('GET', KEYS[2])) or 0) + 8)"),
			edit(lua+"lone.lua", "local fence = math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 8, clock)", "local fence = tonumber(redis.call('GET', KEYS[2]) or 0) + 8")),
		systems(23, "a fence is not below the server's time", queues, 200),
		systems(23, "a fence is not below the server's time", failover, 200),
		schedules(24, "a lease that was passed on in a line owes no release", loses, base(2).lines(),
			edit("lease.go", "l.release.settled = l.leaveBlockLocked(err == ErrReleased)", "l.release.settled = l.leaveBlockLocked(err == ErrReleased) && !without(24)")),
		schedules(25, "the next in line has the deadline of the grant", loses, base(2).lines().lasting(5*time.Second),
			edit("turns.go", "\tnext.step, next.renewAt = ", "if without(25) {\nnext.extendLocked(time.Now(), l.options.firstTTL())\n}\nnext.step, next.renewAt = ")),
		schedules(26, "a call that has only removed dead waiters is repeated", left, base(2, subLoss),
			edit(sendGo, "\treturn sent, r.Reply, r.Err\n", "if r.Reply == unswept {\nr.Reply = int64(1)\n}\nreturn sent, r.Reply, r.Err\n"),
			edit(sendGo, "\treturn r.Reply == unswept\n", "return r.Reply == unswept && !without(26)\n"),
			edit(lua+"queue.lua", "for batch = 0, 50 do", "for batch = 0, 0 do")),
		schedules(27, "with replicas, a grant or a renewal counts when they have it", overlap, base(2, lag, split).on(replicas),
			edit("backend/rediscore/replicas.go", "if l.replicas == nil || kinds", "if l.replicas == nil || without(27) || kinds")),
		schedules(27, "with replicas, a grant or a renewal counts when they have it", order, base(2, lag, split).on(replicas)),
		schedules(28, "with replicas, the message of a handover is only a hint", loses, base(2, lag, split).on(replicas).after(bWaits...),
			edit(waitGo, "case w.locker.replicas != nil:", "case w.locker.replicas != nil && !without(28):")),
		schedules(30, "a resource compares the leases if the fences are equal", mixed, base(1, split, setBack).on(failover).again().after(bothGrant...),
			edit("fence/stamp.go", "(s.Fence < next.Fence || s == next)", "(s.Fence < next.Fence || s == next || s.Fence == next.Fence && without(30))")),
		schedules(31, "when the waiter that checks in for its process has ended, the next one does", left, base(2, drop).crowd().after(bWaits...),
			edit("backend/rediscore/room.go", "\tcase i == 0 && (!r.set || w.returned):", "\tcase i == 0 && without(31):\n\t\tr.set = false\n\t\tr.timer.Stop()\n\tcase i == 0 && (!r.set || w.returned):")),

		systems(100, "a handover to an inbox that nobody reads", queues, 200,
			edit(lua+"queue.lua", "return listeners[inbox] > 0", "return true")),
		systems(101, "a wake-up is lost between enqueue and subscribe", queues, 300,
			edit(deliveryGo, "case !b.live:\n\t\treturn \"\", b.epoch\n\tcase b.sharded", "case !b.live && !without(101):\n\t\treturn \"\", b.epoch\n\tcase b.sharded"),
			edit(waitGo, "if m.changed && !without(22) {\n\t\tw.change()", "if m.changed && !without(22) {\n\t\tif w.change(); without(101) && m == (mail{changed: true}) {\n\t\t\treturn dlock.Attempt{}, nil\n\t\t}")),
		schedules(102, "the grant of a cancelled wait is kept", left, base(2, cancel).after(bWaits...),
			edit("error.go", "case err != nil && !NoEffect(err):", "case err != nil && !NoEffect(err) && !(queued && without(102)):"),
			edit("error.go", ", err != nil && queued && answer != (Attempt{}) && !answer.Degraded:", ", err != nil && queued && answer != (Attempt{}) && !answer.Degraded && !without(102):"),
			edit(deliveryGo, "p.giveBackLocked(r, token)", "if !without(102) {\np.giveBackLocked(r, token)\n}")),
		systems(103, "redlock: a split line does not settle", majority, 200,
			edit("backend/redlock/wait.go", "w.giveTo(leader, false)", "if !without(103) {\nw.giveTo(leader, false)\n}")),
		schedules(104, "a release is forgotten after a lost reply", left, base(2, cut),
			edit(owedGo, "case c.trying > 0:\n\t\treturn\n\t}", "case without(104):\n\t\tq.dropLocked(c, c.Err)\n\t\treturn\n\tcase c.trying > 0:\n\t\treturn\n\t}"),
			edit(owedGo, "if c.trying > 0 && now.Sub(c.sent) >= maxRetryPause {", "if c.trying > 0 && without(104) {\n\t\tq.dropLocked(c, nil)\n\t\treturn\n\t}\n\tif c.trying > 0 && now.Sub(c.sent) >= maxRetryPause {")),
		schedules(106, "the fence counter is lowered", order, base(2, setBack),
			edit(lua+"fence.lua", "math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 8, least)", "least"),
			edit(lua+"lone.lua", "local fence = math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 8, clock)", "local fence = clock")),
		systems(107, "'queue' is taken for a grant", polls, 200,
			edit(sendGo, "case r.Reply == queued:", "case r.Reply == queued && !without(107):"),
			edit("backend/rediscore/rediscore.go", "if fence, ok := reply.(int64); ok {", "if fence, ok := reply.(int64); ok || reply == queued && without(107) {")),
		systems(108, "a set waits in the order of its caller", majority, 60,
			edit("set.go", "\tkeys = slices.Sorted(slices.Values(keys))\n", "if keys = slices.Clone(keys); !without(108) {\nslices.Sort(keys)\n}\n")),
		systems(109, "a set that has failed keeps what it has", queues, 200,
			edit("set.go", "if g.set.byKey == nil {", "if g.set.byKey == nil && !without(109) {")),
		systems(110, "a set does not give back what it may not keep", queues, 200,
			edit("set.go", "g.back.Go(func() { releaseAll(given, limit) })", "if !without(110) {\ng.back.Go(func() { releaseAll(given, limit) })\n}")),
		schedules(111, "a grant that a check-in finds is not on the replicas", loses, base(2, lag, split).on(replicas).after(bWaits...),
			edit(lua+"checkin.lua", "call('HSET', KEYS[4], '@' .. inbox, string.format('%.0f', time))", ""),
			edit(lua+"checkin.lua", "call('PEXPIRE', KEYS[3], '60000')\n    call('PEXPIRE', KEYS[4], '60000') -- WAIT", "-- WAIT")),
		systems(112, "a key is kept until its TTL ends, and not until its MinHold has passed", queues, 600,
			edit("release.go", "enough := !l.deadline.Before(hold)", "enough := !l.deadline.Before(hold) || without(112)")),
		systems(113, "a lease is renewed after its MaxHold", polls, 200,
			edit("lease.go", "return l.options.maxHold > 0 &&", "return l.options.maxHold > 0 && !without(113) &&")),
		systems(114, "an Observer does not hear of a lease that its release has found lost", queues, 600,
			edit("observer.go", "\tif c.ended {\n\t\tend, reason", "\tif c.ended && !(errors.Is(err, ErrLost) && without(114)) {\n\t\tend, reason")),
		systems(115, "an Observer hears twice of a lost lease", queues, 200,
			edit("observer.go", "\tl.reports = false\n", "\tl.reports = without(115)\n"),
			edit("lease.go", "\tif l.err != nil {\n\t\treturn l.err\n", "\tif l.err != nil {\n\t\tl.reportEndLocked()\n\t\treturn l.err\n")),
		systems(116, "a release that was given up is owed for ever", queues, 400,
			edit(owedGo, "\tq.becomeLocked(c, settled)\n\tq.all.Remove", "\tif err == nil || !without(116) {\n\t\tq.becomeLocked(c, settled)\n\t}\n\tq.all.Remove")),
	)
}

// base is a configuration without faults. The TTL is less than the time after which a call fails.
func base(depth int, faults ...wrong) *config {
	c := &config{
		setup: setup{kind: queues, ttl: 3 * time.Second, turns: []int{0}}, actors: []int{0, 1}, rounds: 1,
		tick: 1300 * time.Millisecond, depth: depth, faults: map[wrong]int{},
	}
	for _, f := range faults {
		c.faults[f]++
	}
	return c
}

// long has a TTL that is longer than that of a lease that was waited for.
func (c *config) long() *config                   { c.ttl, c.tick = 10*time.Second, 2500*time.Millisecond; return c }
func (c *config) lasting(d time.Duration) *config { c.ttl = d; return c }
func (c *config) every(d time.Duration) *config   { c.tick = d; return c }
func (c *config) again() *config                  { c.rounds = 2; return c }
func (c *config) on(k kind) *config {
	switch c.kind = k; k {
	case failover: // two masters grant, and nothing else holds
		c.only = mixed
	case majority:
		c.board = board{clocks: make([]time.Duration, 3), fast: make([]bool, 3), unguarded: true}
	}
	return c
}
func (c *config) apart() *config { c.clocks[1] = time.Hour; return c }
func (c *config) crowd() *config { c.actors = []int{0, 1, 1}; return c }
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
	bChecksIn     = join(bWaits, "reply: checkin B2", "time passes", "A releases", "request: release A1")
	bIsHanded     = join(bWaits, "A releases", "request: release A1")
	aTriesAgain   = join(bWaits, "reply: checkin B2", "A releases", "request: release A1", "reply: release A1", "much time passes", "A begins")
	anotherServer = []string{"another server", "news", "time passes", "request: subscribe B", "reply: subscribe B", "A releases", "request: release A1"}
	bStandsStill  = append(join(bWaits, "reply: checkin B2", "B will pause", "time passes", "time passes"), anotherServer...)
	bIsLate       = join(bWaits, "reply: checkin B2", "A releases", "request: release A1", "much time passes")
	bothGrant     = []string{
		"A begins", "request: acquire A1", "reply: acquire A1", "write: A1", "A releases", "write: A1", "request: release A1", "reply: release A1",
		"the clock is set back", "a replica becomes the server", "news: B", "A begins", "request: acquire A2", "reply: acquire A2", // at the former server
		"write: A2", "B begins", "request: acquire B1", "reply: acquire B1", "write: B1", "A releases",
	}
	aTakesIt = join(bWaits, "reply: checkin B2", "A releases", "request: release A1", "reply: release A1", "much time passes", "request: checkin B2", "reply: checkin B2", "A begins")
)

func join(begin []string, more ...string) []string {
	return append(begin[:len(begin):len(begin)], more...)
}

// planted returns all edits, with the functions that they call. Scripts are edited when they are made.
func planted(all []row) (edits []mutants.Edit) {
	var scripts strings.Builder
	for _, r := range all {
		for _, e := range r.edits {
			if strings.HasPrefix(e.File, lua) {
				fmt.Fprintf(&scripts, "if without(%d) {\nsource = strings.ReplaceAll(source, %q, %q)\n}\n", r.number, uncommented(e.Old), uncommented(e.New))
			} else {
				edits = append(edits, e)
			}
		}
	}
	for name, folder := range map[string]string{"dlock": "", "rediscore": "backend/rediscore/", "redlock": "backend/redlock/", "owed": "internal/owed/", "fence": "fence/", "memory": "backend/memory/"} {
		edits = append(edits, mutants.Edit{File: folder + "without.go", New: "package " + name +
			"\nimport \"github.com/dlock-go/dlock/internal/planted\"\nfunc without(number int) bool { return planted.Has(number) }\n" +
			"func when[T any](number int, faulty, right T) T { return map[bool]T{true: faulty, false: right}[without(number)] }\n"})
	}
	return append(edits,
		mutants.Edit{File: "backend/rediscore/scripts.go", Old: "Source: strings.Join(append(parts, end), \"\\n\")", New: "Source: edited(strings.Join(append(parts, end), \"\\n\"))"},
		mutants.Edit{File: "backend/rediscore/edited.go", New: "package rediscore\nimport \"strings\"\nfunc edited(source string) string {\n" + scripts.String() + "return source\n}\n"},
		mutants.Edit{File: "internal/planted/planted.go", New: `// Package planted says which faults are planted.
package planted

import (
	"fmt"
	"os"
	"slices"
)

func Has(number int) bool { return slices.Contains(os.Args, fmt.Sprint("without=", number)) }
`})
}

// uncommented is Lua without comments, as it is sent.
func uncommented(code string) string {
	lines := strings.Split(code, "\n")
	for i, line := range lines {
		if before, _, ok := strings.Cut(line, "--"); ok {
			lines[i] = strings.TrimRight(before, " ")
		}
	}
	return strings.Join(lines, "\n")
}

// exact are edits of the Go runtime: without them it orders timers of one instant, what a select finds ready, and a map, at
// random, and interrupts a goroutine that has run for 10 ms. The children of a context end in random order. Which goroutine
// gets a mutex, and the return of memory, go by real time, and each 61st goroutine is not the next in line.
func exact() (edits []mutants.Edit) {
	goroot, _ := exec.Command("go", "env", "GOROOT").Output() // without which no edit finds its text
	for _, e := range []mutants.Edit{
		{File: "runtime/time.go", Old: "t.rand = cheaprand()", New: "t.rand = 0"},
		{File: "runtime/select.go", Old: "j := cheaprandn(uint32(norder + 1))", New: "j := uint32(norder)"},
		{File: "context/context.go", Old: "children map[canceler]struct{} //", New: "births int\nchildren map[canceler]int //"},
		{File: "context/context.go", Old: "p.children = make(map[canceler]struct{})", New: "p.children = make(map[canceler]int)"},
		{File: "context/context.go", Old: "p.children[child] = struct{}{}", New: "p.births++\np.children[child] = p.births"},
		{File: "context/context.go", Old: "for child := range c.children {", New: "for _, child := range inOrder(c.children) {"},
		{File: "context/order.go", New: `package context

func inOrder(births map[canceler]int) (all []canceler) {
	for c, n := range births {
		i := len(all)
		for i > 0 && births[all[i-1]] > n {
			i--
		}
		all = append(all[:i], append([]canceler{c}, all[i:]...)...)
	}
	return all
}
`},
		{File: "runtime/mgcscavenge.go", Old: "\tfor {\n\t\treleased, workTime := scavenger.run()", New: "\tfor {\n\t\tif true {\n\t\t\tscavenger.park()\n\t\t\tcontinue\n\t\t}\n\t\treleased, workTime := scavenger.run()"},
		{File: "runtime/proc.go", Old: "if pp.schedtick%61 == 0 && !sched.runq.empty() {", New: "if false {"},
		{File: "runtime/rand.go", Old: "func maps_rand() uint64 {\n\treturn rand()", New: "func maps_rand() uint64 {\n\treturn 0"},
		{File: "internal/sync/mutex.go", Old: "starvationThresholdNs = 1e6", New: "starvationThresholdNs = 1e18"},
		{File: "runtime/proc.go", Old: "const forcePreemptNS = 10 * 1000 * 1000", New: "const forcePreemptNS = 1000 * 1000 * 1000 * 1000"},
	} {
		e.File, _ = filepath.Rel(mutants.Root(), filepath.Join(strings.TrimSpace(string(goroot)), "src", e.File))
		edits = append(edits, e)
	}
	return edits
}

const folder = "internal/sim/world"

// TestEdits fails if a text is not found once that an edit replaces.
func TestEdits(t *testing.T) {
	all := planted(rows())
	if *rowsToo != "" { // the text of the runtime differs from release to release
		all = append(all, exact()...)
	}
	for _, r := range rows() {
		for _, e := range r.edits {
			if strings.HasPrefix(e.File, lua) {
				_, err := mutants.Apply([]mutants.Edit{e})
				require.NoError(t, err)
			}
		}
	}
	_, err := mutants.Apply(all)
	require.NoError(t, err)
}

// knownFile has what has found each fault: go test ./internal/sim/world -run Rows -rows=record
const knownFile = "testdata/known.json"

func known(t *testing.T) (all map[string]find) {
	text, err := os.ReadFile(knownFile)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &all))
	return all
}

// TestRows compiles all faults into one program, and demands that each is found.
func TestRows(t *testing.T) {
	if *rowsToo == "" {
		t.Skip("-rows plants faults")
	}
	program, err := mutants.Build(t.Context(), t.TempDir(), folder, append(planted(rows()), exact()...), "-vet=off")
	require.NoError(t, err)
	finds, dir, programs := known(t), t.TempDir(), make(map[string]string)
	for i, r := range rows() {
		t.Run(r.name(), func(t *testing.T) {
			if r.clause != "" {
				r.find(t, dir, programs)
				return
			}
			out, err := mutants.Tests{
				In: folder, Run: "^TestRow$", Says: "FOUND ",
				Args: []string{"-test.v", "-large", fmt.Sprint("-row=", i), "-rows=" + *rowsToo, fmt.Sprint("without=", r.number)},
			}.Fail(t.Context(), program)
			require.NoError(t, err, out)
			t.Log(out)
			_, text, _ := strings.Cut(out, "FOUND ")
			var f find
			require.NoError(t, json.NewDecoder(strings.NewReader(text)).Decode(&f))
			finds[r.name()] = f
		})
	}
	if *rowsToo == "record" {
		text, err := json.MarshalIndent(finds, "", "\t")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(knownFile, append(text, '\n'), 0o600))
	}
}

// TestRow looks for one fault, in the program of TestRows.
func TestRow(t *testing.T) {
	if *rowNumber < 0 {
		t.Skip("a part of TestRows")
	}
	defer oneAtATime()()
	r := rows()[*rowNumber]
	var before find
	if *rowsToo == "known" {
		before = known(t)[r.name()]
	}
	if r.config != nil {
		r.config.only = r.broken
		f := explore(t, r.config, before.At)
		if t.Log(f); len(f.failures) > 0 {
			r.found(t, find{At: f.at})
		}
		return
	}
	if before.Seed != 0 && r.fails(t, before.Seed) {
		return
	}
	seed := uint64(1)
	if *rowsToo == "fresh" {
		seed = uint64(time.Now().UnixNano())
	}
	for n := 0; n < r.seeds; seed++ {
		if newPlan(seed).kind == r.kind {
			if n++; r.fails(t, seed) {
				t.Logf("%d others pass", n-1)
				return
			}
		}
	}
}

func (row) found(t *testing.T, f find) {
	text, err := json.Marshal(f)
	require.NoError(t, err)
	t.Errorf("FOUND %s", text)
}

// fails reports whether a system fails.
func (r row) fails(t *testing.T, seed uint64) bool {
	p := newPlan(seed)
	if r.shape != nil {
		r.shape(p)
	}
	result := p.run(t, false)
	for _, f := range result.failures {
		t.Logf("seed %d: %s: %s", seed, f.property, f.text)
	}
	if len(result.failures) > 0 {
		r.found(t, find{Seed: seed})
	}
	return len(result.failures) > 0
}

// Each numbered rule of docs/handover.md and docs/redlock.md has a row, and the other way round. Rule 29 of the handover is
// taken out with rule 5: each of the two prevents the same.
func TestRules(t *testing.T) {
	for name, c := range map[string]struct {
		first, last int
		here        []int
	}{"handover": {0, 99, []int{29}}, "redlock": {200, 219, nil}} {
		text, err := os.ReadFile("../../../docs/" + name + ".md")
		require.NoError(t, err)
		var page []int
		for _, line := range regexp.MustCompile(`(?m)^\| (\d[\d, ]*) \|`).FindAllStringSubmatch(string(text), -1) {
			for n := range strings.SplitSeq(line[1], ", ") {
				number, err := strconv.Atoi(n)
				require.NoError(t, err)
				page = append(page, c.first+number)
			}
		}
		for _, r := range rows() {
			if c.first < r.number && r.number <= c.last && r.clause == "" && !slices.Contains(c.here, r.number) {
				c.here = append(c.here, r.number)
			}
		}
		require.ElementsMatch(t, page, c.here)
	}
}

// TestExact runs each of some systems twice, in a program whose runtime does nothing at random: all that happens is
// the same, byte by byte.
func TestExact(t *testing.T) {
	if *rowsToo == "" {
		t.Skip("-rows compiles the runtime")
	}
	program, err := mutants.Build(t.Context(), t.TempDir(), folder, exact())
	require.NoError(t, err)
	divide(t, program, "TestSeedsRepeat", 1, *howMany*uint64(runtime.NumCPU()), "-exact")
}
