package main

import "strings"

// A Config says what is searched.
type Config struct {
	Name    string
	Clients int
	Acquire [maxClients]int // acquisitions of each client
	Tokens  int             // that each client can have in use at a time

	TTL              int // in ticks, of attempts without waiting and of renewals
	FirstTTL         int // of leases that were waited for
	Seen             int // a waiter that was last seen so long ago is dead
	UnsubscribedSeen int // the same, without an inbox
	Silent           int // such a waiter is removed also while the lock is held; 0: it is not
	Sweep            int // so many dead waiters are removed in a call; 0: all

	Faults       [numFaults]uint8
	Skew         int  // how many ticks the clock of the replica is ahead
	Together     bool // all clients but the first are waits of one process, with one inbox
	Unsubscribed int  // so many clients, from the first, never have an inbox
	OpensLate    bool // the inboxes are opened only after the start
	NoRenew      bool // nobody renews
	Replicated   bool // grants and renewals count when the replica has them
	Resource     bool // who holds the lock writes to a resource that compares fences
	Prompt       bool // a call that is more than a TTL old is never delivered

	Begin []string // the events with which every history begins: their texts

	Without  Rules // taken out of the protocol
	Check    Properties
	Limit    int // of states
	LastTick int // where the server may lose data: when the search ends
}

// Rules is a set of rules of the protocol, by their numbers.
type Rules uint64

func rule(n int) Rules               { return 1 << n }
func (r Rules) has(n int) bool       { return r&rule(n) != 0 }
func (c *Config) without(n int) bool { return c.Without.has(n) }

// Properties is a set of properties.
type Properties uint8

const (
	P1     Properties = 1 << iota // two clients never certainly hold at once
	P2                            // fences rise in the order of certain holds
	P3                            // while a client is certain, the store holds its token
	P4                            // once faults stop, all are served and nothing stays behind
	P5                            // a resource takes no write of a lease after one of another that came between
	safety = P1 | P2 | P3
	all    = safety | P4
)

func (p Properties) String() string {
	for i, name := range []string{"P1", "P2", "P3", "P4", "P5"} {
		if p == 1<<i {
			return name
		}
	}
	return "?"
}

// base is a configuration without faults.
func base(name string, clients int) *Config {
	return &Config{
		Name: name, Clients: clients, Acquire: [maxClients]int{1, 1, 1}, Tokens: maxTokens / clients,
		TTL: 3, FirstTTL: 2, Seen: 2, UnsubscribedSeen: 1,
		Prompt: true, Check: all, Limit: 25_000_000,
	}
}

// longest is after how long it does not matter any more when a waiter has called.
func (c *Config) longest() int { return max(c.Seen, c.Silent) }

// process returns the first client of the process of a client.
func (c *Config) process(client int) int {
	if c.Together {
		return min(client, 1)
	}
	return client
}

func (c *Config) timed() bool { return c.Faults[wipe]+c.Faults[failover]+c.Faults[split] > 0 }

// client returns whose a token is.
func (c *Config) client(t token) int { return (int(t) - 1) / c.Tokens }

// start returns the first state, after the events with which every history begins.
func (c *Config) start() (State, []event) {
	w := world{c: c}
	w.Left = c.Faults
	for i := range c.Clients {
		w.Clients[i].More = uint8(c.Acquire[i])
		w.Clients[i].Live = i >= c.Unsubscribed && !c.OpensLate
		w.Clients[i].Sub = w.Clients[i].Live
	}
	w.canonical()
	var events []event
	for _, text := range c.Begin {
		events = append(events, w.named(text))
	}
	return w.State, events
}

// named makes the event happen whose text begins so.
func (w *world) named(text string) event {
	for e := range w.events {
		if strings.HasPrefix(w.c.event(e, &w.State), text) {
			w.happen(e)
			w.canonical()
			return e
		}
	}
	panic("nothing that begins with " + text)
}
