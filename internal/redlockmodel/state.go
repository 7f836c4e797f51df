package main

// Bounds of what a State has room for.
const (
	maxNodes   = 5
	maxClients = 3
	maxCalls   = 5 // of each node
)

// A State is one state of the whole: the nodes, what is in flight to them, and the clients. Times are
// in ticks, and count from now. All fields are bytes, so that a state can be hashed as it lies in memory.
type State struct {
	Nodes   [maxNodes]Node     // sorted: nodes that are in the same state are the same
	Clients [maxClients]Client // sorted, too
	Left    [numBudgets]uint8
	Certain uint8 // the largest fence under which a client was ever certain
}

// A Node is a store, with what is in flight to it and what clients know of it.
type Node struct {
	Store
	Votes [maxClients]Vote
	Calls [maxCalls]Call // sorted
	Saved Store          // on its disk, or on a replica
	Name  uint8          // in a trace
}

// A Store is what a node keeps.
type Store struct {
	Holder  token
	Rest    uint8 // of its TTL
	Counter uint8 // of fences
	Age     uint8 // for so long it has forgotten nothing
}

// A Vote is what a client knows of its token on a node. In a lease, the votes are the answers to the
// renewal.
type Vote struct {
	Rest    uint8 // for so long it counts
	Number  uint8 // the node's counter was at least this while the token held
	Young   bool  // no answer to it has counted yet, as the node is young
	Fresh   bool  // it was cast by this attempt
	No      bool  // the answer to the renewal; in an attempt: the token did not hold before it
	Spoiled bool  // a release got no answer
}

// A Client makes one acquisition after the other. It is certain that it holds while Rest > 0.
type Client struct {
	Phase phase
	Token token
	More  uint8 // acquisitions that it may still begin
	Fence uint8 // of its lease
	Rest  uint8 // of its lease
	Fixed uint8 // without rule 8d: the fence that is being raised
	Name  uint8 // in a trace
}

type phase uint8

const (
	idle phase = iota
	trying
	holding
	lapsed   // its deadline has passed, and somebody may adopt the lease
	adopting // which has no deadline
)

// A token is 1 + client * sessions + the number of the acquisition; 0 is none. A ghost is a token
// that nobody uses any more, and that is not in flight to the node.
type token = uint8

const (
	sessions       = 4
	ghost    token = 255
)

func client(t token) int { return int(t-1) / sessions }

// A Call is in flight to a node, or its answer is in flight back.
type Call struct {
	Kind   kind // 0: no call
	Token  token
	Age    uint8 // since it was sent; of a vote that was queued: since it was cast
	Answer answer
	Fence  uint8 // to raise the counter to, or answered
	Wanted bool  // somebody waits for the answer
	Stale  bool  // it was sent before its vote was given back
	Young  bool  // the node was young
	Fresh  bool  // the token did not hold
}

type kind uint8

const (
	noCall kind = iota
	vote
	confirm
	release
)

type answer uint8

const (
	unanswered answer = iota
	queued
	yes
	no
)

// A budget is what may happen a limited number of times.
type budget uint8

const (
	ticks    budget = iota // of time
	losses                 // a call is given up, and never arrives, or its answer is lost
	delays                 // a call is given up, and arrives later
	doubles                // a call arrives twice
	wipes                  // a node loses all data
	restarts               // a node starts again with what it has saved
	drifts                 // a tick of only one node's clock
	rounds                 // a client asks a node again, keeps a vote alive, or gives it back
	renewals               // of a lease
	quits                  // an attempt is ended
	repeats                // a holder acquires again, with the same token
	adoptions
	numBudgets
)
