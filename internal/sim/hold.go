package sim

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/dlock-go/dlock/backend/rediscore"
)

// A Held is a request or a message that a test holds back, in a bubble. The test says when it arrives,
// how often, and what the caller gets. Methods that let something happen return when all has come to rest.
type Held struct {
	Trip // once it has begun

	t       testing.TB
	conn    *Conn
	match   func(Trip) bool
	caught  bool               // guarded by the mutex of the Conn
	reply   []rediscore.Result // of the server
	results []rediscore.Result // of the caller, when over is closed
	over    chan struct{}
}

// Hold holds back the next trip that match accepts, whatever its fate would be.
func (c *Conn) Hold(t testing.TB, match func(Trip) bool) *Held {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &Held{t: t, conn: c, match: match, over: make(chan struct{})}
	c.holds = append(c.holds, h)
	return h
}

// fateLocked returns what becomes of a trip.
func (c *Conn) fateLocked(t Trip) Fate {
	f := c.fate(t)
	i := slices.IndexFunc(c.holds, func(h *Held) bool { return h.match(t) })
	if i < 0 {
		return f
	}
	h := c.holds[i]
	c.holds = slices.Delete(c.holds, i, i+1)
	h.Trip, h.caught = t, true
	if t.Message != "" {
		return Fate{Reply: Leg{Lost: true}}
	}
	if t.Calls != nil {
		h.results = make([]rediscore.Result, len(t.Calls))
	}
	return Fate{Request: Leg{Until: h.over}, Results: h.results}
}

func (h *Held) came() bool {
	h.conn.mu.Lock()
	defer h.conn.mu.Unlock()
	return h.caught
}

// Await fails the test if the trip has not begun.
func (h *Held) Await() *Held {
	h.t.Helper()
	if !h.came() {
		if synctest.Wait(); !h.came() {
			h.t.Fatal("what is to be held back has not come")
		}
	}
	return h
}

// Execute lets a request arrive, once more if it did already. It returns the reply to its first call,
// which the caller does not get yet.
func (h *Held) Execute() any {
	h.t.Helper()
	h.Await()
	h.reply = h.Trip.Execute(context.Background(), h.conn.closed)
	if err := h.reply[0].Err; err != nil {
		h.t.Fatalf("a call that was held back: %v", err)
	}
	synctest.Wait()
	return h.reply[0].Reply
}

// Answer gives the caller the last reply. If there is none, the request arrives first.
func (h *Held) Answer() {
	h.t.Helper()
	if h.Await(); h.Calls != nil && h.reply == nil {
		h.Execute()
	}
	copy(h.results, h.reply)
	h.end()
}

// Return gives the caller another reply, or an error, whether the request arrives or not.
func (h *Held) Return(reply any, err error) {
	h.t.Helper()
	h.Await()
	for i := range h.results {
		h.results[i] = rediscore.Result{Reply: reply, Err: err}
	}
	h.end()
}

func (h *Held) end() {
	close(h.over)
	synctest.Wait()
}

// Deliver lets a message arrive, once more if it did already.
func (h *Held) Deliver() {
	h.t.Helper()
	h.Await()
	publish := map[bool]string{false: "PUBLISH", true: "SPUBLISH"}[h.Shard]
	if _, err := h.To.Do(publish, h.Channel, h.Message); err != nil {
		h.t.Fatalf("a message that was held back: %v", err)
	}
	synctest.Wait()
}
