package rediscore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/sim"
)

// reached sets how many replicas get what the server writes.
func (s *scene) reached(n int) {
	for i, r := range s.server.Replicas() {
		r.SetLink(sim.Link{Cut: i >= n})
	}
}

// withReplicas is inScene on a server with three replicas, with a Locker that wants two of them.
func withReplicas(t *testing.T, play func(s *scene, a *actor)) {
	inScene(t, func(s *scene, _ *actor) {
		for range 3 {
			s.server.NewReplica()
		}
		play(s, s.enter(rediscore.WithReplicas(2, time.Second)))
	})
}

const deniedWait = "NOPERM this user has no permissions to run the 'wait' command"

// A grant, or a renewal, that too few replicas have is an error of which the outcome is unknown.
// What is not granted needs no replicas, and a release does not wait for them.
func TestReplicas(t *testing.T) {
	renewals := []string{"Renew", "RenewBatch", "Confirm"} // of these "no" means that the token does not hold the lock, else that another does
	for _, name := range append(renewals, "TryAcquire", "TryAcquireSet", "Vote", "Acquire", "AcquireVote") {
		renewal := slices.Contains(renewals, name)
		for _, now := range []struct {
			holder   string // or ""
			replicas int
			denied   bool
		}{
			{"A", 3, false}, {"A", 2, false}, {"A", 1, false}, {"A", 0, false}, {"A", 3, true},
			{"", 3, false}, {"", 1, false}, {"", 0, true}, {"other", 0, false}, {"other", 0, true},
		} {
			yes := now.holder == "A" || now.holder == "" && !renewal
			if !yes && strings.HasPrefix(name, "Acquire") {
				continue // it waits
			}
			withReplicas(t, func(s *scene, a *actor) {
				s.expire()
				if now.holder != "" {
					s.hold(now.holder)
				}
				s.reached(now.replicas)
				want := &rediscore.ReplicasError{Got: now.replicas, Want: 2, Timeout: time.Second}
				if now.denied {
					want.Got, want.Err = 0, sim.Error(deniedWait)
					s.forbidWait()
				}
				ok, err := methodsOf(s.Context(), a.Locker, "k", "A", ttl)[name]()
				if !yes || now.replicas >= 2 && !now.denied {
					require.NoError(s, err, "%s, %+v", name, now)
					require.Equal(s, yes, ok)
					return
				}
				require.False(s, ok)
				var few *rediscore.ReplicasError
				require.ErrorAs(s, err, &few, "%s, %+v", name, now)
				require.Equal(s, want, few)
				require.False(s, dlock.NoEffect(err), "a lease that nobody relies on would stay")
				require.Equal(s, now.denied, errors.Is(err, want.Err))
			})
		}
	}
	withReplicas(t, func(s *scene, a *actor) {
		s.reached(0)
		begun := time.Now()
		require.True(s, a.release("H"))
		require.Zero(s, time.Since(begun))
	})
}

func (s *scene) forbidWait() { s.fails(sim.Faults{Commands: map[string]string{"WAIT": deniedWait}}) }

// The message of a handover is only a hint: the waiter asks, and is granted the lock when the
// replicas have it. The lease began when it was handed over.
func TestHandoverToReplicas(t *testing.T) {
	for name, acquire := range map[string]func(*actor) *waiting{
		"Acquire":     func(a *actor) *waiting { return a.acquire("A") },
		"AcquireVote": func(a *actor) *waiting { return a.acquireVote("A", 1) },
	} {
		withReplicas(t, func(s *scene, a *actor) {
			w := acquire(a)
			time.Sleep(10 * time.Second) // the server's clock is known
			s.reached(0)
			n, handed := len(a.asked(0)), time.Now()
			s.release("H")
			require.False(s, w.over(), "granted without the replicas")
			require.Len(s, a.asked(n), 1, "the waiter asks at once")
			time.Sleep(2 * time.Second)
			require.False(s, w.over())
			require.Greater(s, len(a.asked(n)), 1, "the waiter asks again")
			s.reached(2)
			require.WithinDuration(s, handed.Add(-time.Millisecond), w.granted().Since, time.Microsecond, name)
			require.Less(s, time.Since(handed), 5*time.Second)
		})
	}
}

// A wait ends if the user has no right to WAIT. Otherwise it would keep the lock from everybody, and
// never be granted it. It says who held the lock, so that the Client releases the token.
func TestHandoverWithoutRightToWait(t *testing.T) {
	withReplicas(t, func(s *scene, a *actor) {
		w := a.acquire("A")
		s.forbidWait()
		s.release("H")
		w.failed(dlock.ErrInvalid)
		require.ErrorContains(s, w.err, "'wait'")
		require.NotEmpty(s, w.Holder)
	})
}

// A message that overtakes the answer to a call is no grant either.
func TestEarlyMessageIsAHint(t *testing.T) {
	withReplicas(t, func(s *scene, a *actor) {
		w := a.acquire("A")
		s.reached(0)
		checkIn := a.holdCall(rediscore.CheckInScript, "A")
		rediscore.ChangeInbox(a.Locker, "A")
		checkIn.Execute()
		time.Sleep(time.Millisecond)
		s.release("H")
		checkIn.Answer()
		require.False(s, w.over(), "granted without the replicas")
		s.reached(2)
		w.grantedNow()
	})
}

func TestWithReplicasRefuses(t *testing.T) {
	able := sim.Dial(sim.NewServer(), nil)
	unable := struct{ rediscore.Conn }{able}
	for _, c := range []struct {
		conn    rediscore.Conn
		n       int
		timeout time.Duration
		want    string
	}{
		{able, -1, time.Second, "WithReplicas(-1, 1s)"},
		{able, 1, time.Millisecond - 1, "WithReplicas(1, 999.999µs)"},
		{able, 1, -time.Second, "WithReplicas(1, -1s)"},
		{unable, 1, time.Second, "struct { rediscore.Conn }"},
	} {
		_, err := rediscore.New(c.conn, rediscore.WithReplicas(c.n, c.timeout)).TryAcquire(t.Context(), "k", "A", ttl)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, c.want)
		require.True(t, dlock.NoEffect(err))
	}
	require.True(t, must(rediscore.New(unable, rediscore.WithReplicas(0, 0)).TryAcquire(t.Context(), "k", "A", ttl))(t).Acquired)
}

func TestReplicationMilliseconds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	require.EqualValues(t, 1000, rediscore.Replication{1, time.Second}.Milliseconds(ctx))
	require.InDelta(t, 3_600_000, rediscore.Replication{1, 2 * time.Hour}.Milliseconds(ctx), 100_000)
	ctx, cancel = context.WithTimeout(t.Context(), -1)
	defer cancel()
	require.EqualValues(t, 1, rediscore.Replication{1, time.Second}.Milliseconds(ctx), "0 means for ever")
}

// Calls for one master go together. Those that are redirected follow, a few times.
func TestEvalByMaster(t *testing.T) {
	moved := errors.New("MOVED 7 b")
	for name, c := range map[string]struct {
		errs map[string]error // of calls on a node, "?" before the name for ASKING
		want map[string]int   // how many calls were made there
		err  string
	}{
		"quiet":        {nil, map[string]int{"a": 3}, ""},
		"moved":        {map[string]error{"a": moved}, map[string]int{"a": 3, "b": 3}, ""},
		"ask":          {map[string]error{"a": errors.New("ASK 7 b")}, map[string]int{"a": 3, "?b": 3}, ""},
		"moved to ask": {map[string]error{"a": moved, "b": errors.New("ASK 7 a")}, map[string]int{"a": 3, "b": 3, "?a": 3}, ""},
		"for ever":     {map[string]error{"a": moved, "b": moved}, map[string]int{"a": 3, "b": 9}, "MOVED 7 b"},
		"to nowhere":   {map[string]error{"a": errors.New("MOVED 7 x")}, map[string]int{"a": 3}, rediscore.ErrNoMaster.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			asked, got := 0, make(map[string]int)
			results := make([]rediscore.Result, 3)
			rediscore.EvalByMaster(make([]rediscore.Call, 3), results, func(_ rediscore.Call, address string) (string, error) {
				switch address {
				case "":
					return "a", nil
				case "x":
					asked++
					return "", errDown
				}
				return address, nil
			}, func(node string, asking bool, numbers []int) {
				mu.Lock()
				defer mu.Unlock()
				if asking {
					node = "?" + node
				}
				got[node] += len(numbers)
				for _, i := range numbers {
					results[i] = rediscore.Result{Reply: node, Err: c.errs[node]}
				}
			})
			require.Equal(t, c.want, got)
			require.LessOrEqual(t, asked, 1, "each address is looked up once")
			for _, r := range results {
				if c.err == "" {
					require.NoError(t, r.Err)
				} else {
					require.EqualError(t, r.Err, c.err)
				}
			}
		})
	}
	results := make([]rediscore.Result, 1)
	rediscore.EvalByMaster(make([]rediscore.Call, 1), results, func(rediscore.Call, string) (string, error) { return "", rediscore.ErrNoMaster }, nil)
	require.Equal(t, rediscore.ErrNoMaster, results[0].Err)
	require.Equal(t, temporary, verdictOf(rediscore.ErrNoMaster), "the client is going to know it")
}
