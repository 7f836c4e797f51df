package main

import "strings"

// A Config says what is searched.
type Config struct {
	Name     string
	Nodes    int
	Clients  int
	Acquire  [maxClients]uint8 // acquisitions of each client
	Counters [maxNodes]uint8   // of fences, at first
	TTL      int
	Left     [numBudgets]uint8
	Queue    bool     // votes wait in queues
	Prompt   bool     // a vote for a token that is not used any more never arrives
	Begin    []string // the texts of the events with which every history begins
	Without  rules
	Breaks   property // what is broken without them
	Steps    int      // in how many steps
	Limit    int
}

// A property is one of two.
type property string

const (
	p1 property = "P1" // two clients are never certain at once that they hold the lock
	p2 property = "P2" // fences rise in the order in which clients become certain
)

// rules is a set of rules, which are named as in the README.
type rules uint32

const (
	majorities       rules = 1 << iota // 1
	distinctNodes                      // 1b
	datedByQuorum                      // 3
	clocksDrift                        // 3b
	answeredReleases                   // 4
	oldVotes                           // 4b
	spoiledTokens                      // 4c
	oldConfirms                        // 4d
	sentReleases                       // 4e
	freshOnly                          // 5
	youngNos                           // 5b
	youngVotes                         // 6
	youngRenewals                      // 6b
	healsDoNotCount                    // 7
	datedVotes                         // 7b
	raisedFences                       // 8
	raisedWhileHeld                    // 8b
	inDate                             // 8c
	newMaximum                         // 8d
)

var ruleNames = strings.Fields("1 1b 3 3b 4 4b 4c 4d 4e 5 5b 6 6b 7 7b 8 8b 8c 8d")

func (c *Config) without(r rules) bool { return c.Without&r != 0 }

const maxTTL = 4

// unlimited is a budget that does not become less.
const unlimited = 255

// base is a configuration without faults.
func base(name string, nodes, clients int) *Config {
	c := &Config{Name: name, Nodes: nodes, Clients: clients, Acquire: [maxClients]uint8{1, 1, 1}, TTL: 2, Prompt: true, Limit: 40_000_000}
	return c.with(ticks, unlimited)
}

func (c *Config) quorum() int {
	if c.without(majorities) {
		return (c.Nodes + 1) / 2
	}
	return c.Nodes/2 + 1
}

// guard is the age from which the answers of a node count.
func (c *Config) guard() int { return c.TTL + c.drift() }

// drift is by how many ticks a node's clock may be ahead in a TTL.
func (c *Config) drift() int { return int(c.Left[drifts]) }

// rest is for how long the answer to a call counts.
func (c *Config) rest(call Call) uint8 {
	drift := c.drift()
	if c.without(clocksDrift) {
		drift = 0
	}
	return uint8(max(0, c.TTL-drift-int(call.Age)))
}

// with sets how often something may happen: a budget, a number, and so on.
func (c *Config) with(budgets ...budget) *Config {
	for i := 0; i < len(budgets); i += 2 {
		c.Left[budgets[i]] = uint8(budgets[i+1])
	}
	return c
}

func (c *Config) ttl(ticks int) *Config         { c.TTL = ticks; return c }
func (c *Config) late() *Config                 { c.Prompt = false; return c }
func (c *Config) queues() *Config               { c.Queue = true; return c }
func (c *Config) acquires(n ...uint8) *Config   { copy(c.Acquire[:], n); return c }
func (c *Config) counters(n ...uint8) *Config   { copy(c.Counters[:], n); return c }
func (c *Config) after(events []string) *Config { c.Begin = events; return c }
func (c *Config) lacks(r rules, p property, steps int) *Config {
	c.Without, c.Breaks, c.Steps = r, p, steps
	return c
}
