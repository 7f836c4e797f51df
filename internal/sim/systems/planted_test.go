package systems

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/mutants"
)

// planted is a mistake that the library had once, or could have, with a kind of systems and how many of them must
// find it.
func planted(name string, kind kind, edits []mutants.Edit, systems int) mutants.Fault {
	return mutants.Fault{Name: name, Edits: edits, Tests: mutants.Tests{
		In: "internal/sim/systems", Run: "^TestSystems$", Says: "events are left",
		Env: []string{"DLOCK_SIM_SYSTEMS=" + strconv.Itoa(systems), "DLOCK_SIM_KIND=" + string(kind)},
	}}
}

// Two others are not found: a grant that is dated by its receipt (in 300 systems with queues), and a
// voter of redlock that is cut off and keeps its votes (in 30): the shipped code delays others, too, while
// one client reaches a single server.
var allPlanted = []mutants.Fault{
	planted("a handover to an inbox that nobody reads", queues, []mutants.Edit{
		{File: "backend/rediscore/lua/queue.lua", Old: "return listeners[inbox] > 0", New: "return true"},
	}, 20),
	planted("a wake-up is lost between enqueue and subscribe", queues, []mutants.Edit{
		{File: "backend/rediscore/delivery.go", Old: "case !b.live:\n\t\treturn \"\", b.epoch\n\tcase b.sharded", New: "case b.sharded"},
		{File: "backend/rediscore/wait.go", Old: "if m.changed {\n\t\tw.change()", New: "if m.changed {\n\t\tif w.change(); m == (mail{changed: true}) {\n\t\t\treturn dlock.Attempt{}, nil\n\t\t}"},
	}, 20),
	planted("the grant of a cancelled wait is kept", queues, []mutants.Edit{
		{File: "error.go", Old: "case err != nil && !NoEffect(err):", New: "case err != nil && !NoEffect(err) && !queued:"},
		{File: "error.go", Old: ", err != nil && queued && answer != (Attempt{}) && !answer.Degraded:", New: ":"},
		{File: "backend/rediscore/delivery.go", Old: "p.giveBackLocked(r, token)", New: "_ = token"},
	}, 20),
	planted("redlock: a split line does not settle", majority, []mutants.Edit{
		{File: "backend/redlock/wait.go", Old: "w.giveTo(leader, false)", New: "_ = leader"},
	}, 30),
	planted("a release is forgotten after a lost reply", queues, []mutants.Edit{
		{File: "internal/owed/owed.go", Old: "case c.trying > 0:\n\t\treturn\n\t}", New: "default:\n\t\tq.dropLocked(c, c.Err)\n\t\treturn\n\t}"},
		{File: "internal/owed/owed.go", Old: "if c.trying > 0 && now.Sub(c.sent) >= maxRetryPause {", New: "if c.trying > 0 {\n\t\tq.dropLocked(c, nil)\n\t\treturn\n\t}\n\tif false {"},
	}, 600),
	planted("fences do not follow the time", queues, []mutants.Edit{
		{File: "backend/rediscore/lua/fence.lua", Old: "+ 8, least))", New: "+ 8))"},
		{File: "backend/rediscore/lua/lone.lua", Old: "if free then", New: "if false then"},
	}, 20),
	planted("a fence that is lowered after a promotion", failover, []mutants.Edit{
		{File: "backend/rediscore/lua/fence.lua", Old: "+ 8, least))", New: "+ 8))"},
		{File: "backend/rediscore/lua/lone.lua", Old: "if free then", New: "if false then"},
	}, 100),
	planted("the fence counter is lowered", replicas, []mutants.Edit{
		{File: "backend/rediscore/lua/fence.lua", Old: "math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 8, least)", New: "least"},
		{File: "backend/rediscore/lua/lone.lua", Old: "if free then", New: "if false then"},
	}, 100),
	planted("'queue' is taken for a grant", polls, []mutants.Edit{
		{File: "backend/rediscore/send.go", Old: "case r.Reply == queued:", New: "case false:"},
		{File: "backend/rediscore/rediscore.go", Old: "if fence, ok := reply.(int64); ok {", New: "if fence, ok := reply.(int64); ok || reply == queued {"},
	}, 20),
	planted("a set waits in the order of its caller", queues, []mutants.Edit{
		{File: "set.go", Old: "keys = slices.Sorted(slices.Values(keys))", New: "keys = slices.Clone(keys)"},
	}, 20),
	planted("a set that has failed keeps what it has", queues, []mutants.Edit{
		{File: "set.go", Old: "if g.set.byKey == nil {", New: "if g.set.byKey == nil && keys == nil {"},
	}, 20),
	planted("a set does not give back what it may not keep", queues, []mutants.Edit{
		{File: "set.go", Old: "g.back.Go(func() { releaseAll(given, limit) })", New: "_, _ = given, limit"},
	}, 20),
	planted("a grant that a check-in finds is not on the replicas", replicas, []mutants.Edit{
		{File: "backend/rediscore/lua/checkin.lua", Old: "call('HSET', KEYS[4], '@' .. inbox, string.format('%.0f', time))", New: ""},
		{File: "backend/rediscore/lua/checkin.lua", Old: "call('PEXPIRE', KEYS[3], '60000')\n    call('PEXPIRE', KEYS[4], '60000') -- WAIT", New: "-- WAIT"},
	}, 300),
}

// TestEdits fails if a text is not found once that a planted fault replaces.
func TestEdits(t *testing.T) {
	for _, p := range allPlanted {
		_, err := mutants.Apply(p.Edits)
		require.NoError(t, err, p.Name)
	}
}

// TestPlanted puts each fault into the code that ships, and demands that TestSystems finds it.
func TestPlanted(t *testing.T) {
	if os.Getenv("DLOCK_SIM_PLANTED") == "" {
		t.Skip("DLOCK_SIM_PLANTED=1 looks for the planted faults")
	}
	passed := regexp.MustCompile(`the first (\d+) systems pass`)
	found := regexp.MustCompile(`seed (\d+): (.*): (\d+) of (\d+) events are left, and fail in (\d+) of 20 runs`)
	for _, p := range allPlanted {
		t.Run(p.Name, func(t *testing.T) {
			out, err := p.Find(t.Context(), t.TempDir())
			require.NoError(t, err, out)
			m, before := found.FindStringSubmatch(out), passed.FindStringSubmatch(out)[1]
			t.Logf("found by seed %s (%s), after %s others; %s of %s events are left, and fail in %s of 20 runs", m[1], m[2], before, m[3], m[4], m[5])
		})
	}
}
