package sim_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// other returns a master that does not have a key.
func other(c *sim.Cluster, key string) *sim.Server {
	for _, s := range c.Masters() {
		if s != c.MasterOf(key) {
			return s
		}
	}
	panic("there is one master")
}

// A client follows its keys through all states of a slot that moves.
func TestSlotMoves(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := sim.NewCluster(3, 0)
		var trips []*sim.Server
		l, _ := dialWith(t, c.Nodes[0], func(trip sim.Trip) sim.Fate {
			if trip.Calls != nil {
				trips = append(trips, trip.To)
			}
			return sim.Fate{}
		})
		from, to := c.MasterOf("k"), other(c, "k")
		reaches := func(want ...*sim.Server) {
			t.Helper()
			assert.Equal(t, want, trips)
			trips = nil
		}
		answer(t, l, "A")
		reaches(from)

		m := c.Migrate("k", to)
		ok, err := l.Renew(context.Background(), "k", "A", time.Minute)
		require.NoError(t, err)
		assert.True(t, ok)
		reaches(from)
		m.MoveKeys("k")
		answer(t, l, "B") // TRYAGAIN; then who the holder is
		reaches(from, from, to)
		ok, err = l.Renew(context.Background(), "k", "A", time.Minute)
		require.NoError(t, err)
		assert.True(t, ok)
		reaches(from, to)
		m.MoveKeys()
		assert.Empty(t, from.Keys())
		answer(t, l, "B")
		reaches(from, to, from, to)
		m.Finish()
		a := answer(t, l, "B")
		assert.Equal(t, "A", a.Holder)
		reaches(from, to)
		answer(t, l, "B")
		reaches(to)
	})
}

// The calls of a batch travel to their masters at the same time.
func TestBatchOnCluster(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := sim.NewCluster(3, 0)
		l, _ := dialWith(t, c.Nodes[0], func(trip sim.Trip) sim.Fate {
			return sim.Fate{Request: sim.Leg{Delay: time.Duration(1+slices.Index(c.Nodes, trip.To)) * ms}}
		})
		var batch []dlock.Renewal
		for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
			batch = append(batch, dlock.Renewal{Key: key, Token: "A", TTL: time.Minute})
			if key < "d" {
				put(t, c.MasterOf(key), key, "A")
			}
		}
		begun := time.Now()
		results, err := l.RenewBatch(context.Background(), batch)
		require.NoError(t, err)
		assert.Equal(t, 3*ms, time.Since(begun))
		for i, r := range results {
			assert.Equal(t, dlock.RenewResult{Held: i < 3}, r)
		}
		for _, s := range c.Nodes {
			assert.NotZero(t, s.Cost().Scripts)
		}
	})
}

// A waiter is served soon, though its slot has moved, or its master was replaced and the client
// learns that late.
func TestWaiterFollows(t *testing.T) {
	for name, move := range map[string]func(t *testing.T, c *sim.Cluster, conns []*sim.Conn){
		"slot": func(t *testing.T, c *sim.Cluster, _ []*sim.Conn) { c.Migrate("k", other(c, "k")).Finish() },
		"failover": func(t *testing.T, c *sim.Cluster, conns []*sim.Conn) {
			old := c.MasterOf("k")
			next := old.Replicas()[0]
			next.Promote()
			assert.Same(t, next, c.MasterOf("k"))
			time.Sleep(time.Second)
			old.Follow(next)
		},
		"failover, learnt from another": func(t *testing.T, c *sim.Cluster, conns []*sim.Conn) {
			old := c.MasterOf("k")
			next := old.Replicas()[0]
			next.Promote()
			for _, conn := range conns {
				conn.Follow(next)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := sim.NewCluster(3, 1)
				holder, conn := dial(t, c.Nodes[0])
				waiter, conn2 := dial(t, c.Nodes[1])
				answer(t, holder, "A")
				served := waits(t, waiter)
				time.Sleep(2500 * ms)
				move(t, c, []*sim.Conn{conn, conn2})
				time.Sleep(10 * time.Second) // it has checked in, and its inbox has followed
				assert.Zero(t, handsOver(t, holder, served), "the message has come")
				assert.Equal(t, "B", get(t, c.MasterOf("k"), "k"))
			})
		})
	}
}

// What the nodes say of a slot and of its channels: before and while it moves, and after a failover of
// which the old master has not heard.
func TestRedirections(t *testing.T) {
	c := sim.NewCluster(2, 1)
	from, to := c.MasterOf("{k}"), other(c, "{k}")
	replica, heir := from.Replicas()[0], to.Replicas()[0]
	eval := func(s *sim.Server, keys ...string) string {
		_, err := s.Eval("return 1", "1", keys, nil)
		if err == nil {
			return "served"
		}
		return err.Error()
	}
	say := func(kind string, to *sim.Server) string {
		return fmt.Sprintf("%s %d node%d:6379", kind, rediscore.Slot("{k}"), slices.Index(c.Nodes, to))
	}
	put(t, from, "{k}", "v")
	doing(t, from)("SET", "{k}2", "v", "PX", "1000")
	assert.Equal(t, "served", eval(from, "{k}", "{k}2", "{k}3"))
	assert.Equal(t, "CROSSSLOT Keys in request don't hash to the same slot", eval(from, "{k}", "k2"))
	assert.Equal(t, say("MOVED", from), eval(to, "{k}"))
	assert.Equal(t, say("MOVED", from), eval(replica, "{k}"))
	_, err := to.Subscribe("{k}", true)
	assert.EqualError(t, err, say("MOVED", from))
	var inboxes []*sim.Subscription
	for _, s := range []*sim.Server{from, replica} {
		inbox, err := s.Subscribe("{k}", true)
		require.NoError(t, err)
		inboxes = append(inboxes, inbox)
	}
	client := sim.Dial(from, nil)
	defer client.Close()

	to.SetClock(time.Hour)
	m := c.Migrate("{k}", to)
	m.MoveKeys("{k}2")
	assert.Empty(t, get(t, replica, "{k}2"), "replicas hear of keys that moved")
	assert.InDelta(t, time.Hour.Milliseconds()+1000, doing(t, heir)("PTTL", "{k}2"), 500, "the clock of the replica is an hour behind")
	assert.Equal(t, "served", eval(from, "{k}"))
	assert.Equal(t, say("ASK", to), eval(from, "{k}2"))
	assert.Equal(t, "TRYAGAIN Multiple keys request during rehashing of slot", eval(from, "{k}", "{k}2"))
	assert.Equal(t, say("MOVED", from), eval(to, "{k}2"), "without ASKING")
	m.Finish()
	assert.Equal(t, say("MOVED", to), eval(from, "{k}"))
	assert.Equal(t, "served", eval(to, "{k}", "{k}2"))
	for i, inbox := range inboxes {
		select {
		case <-inbox.Ended:
		default:
			t.Errorf("subscription %d goes on", i)
		}
	}
	assert.EqualError(t, client.Listen(context.Background(), "{k}", true, nil), say("MOVED", to))
	assert.Same(t, to, client.Locate(context.Background(), "{k}"))

	heir.Promote()
	assert.Equal(t, "served", eval(to, "{k}"), "it has not heard of its successor")
	assert.Equal(t, "served", eval(heir, "{k}"))
	assert.Equal(t, say("MOVED", heir), eval(from, "{k}"))
	to.Follow(heir)
	assert.Equal(t, say("MOVED", heir), eval(to, "{k}"))
	c.Migrate("{k}", from).Finish()
	assert.Equal(t, say("MOVED", from), eval(to, "{k}"))
	assert.Equal(t, "served", eval(from, "{k}3"))
}
