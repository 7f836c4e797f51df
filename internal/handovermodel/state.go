package main

// Bounds of what a State has room for.
const (
	maxClients = 3
	maxTokens  = 6
	maxCalls   = 7
	maxMsgs    = 3
)

// A token is 1 + client * tokens per client + its number; 0 is none. When nothing
// refers to a token any more, its number is used for a new one, so that few numbers
// stand for any number of tokens.
type token = uint8

// A State is one state of the whole: the server, the clients, and what is in flight
// between them. Times are in ticks, and count from now. All fields are bytes, so that
// a state can be hashed as it lies in memory.
type State struct {
	Server  Server
	Replica Server // only if there is a failover or a split to come
	Former  Server // only after a split: it goes on
	Clients [maxClients]Client
	Tokens  [maxTokens]Token
	Calls   [maxCalls]Call // sorted
	Msgs    [maxMsgs]Message
	Left    [numFaults]uint8 // how many faults of each kind may still come

	Certain uint8 // the largest fence under which a client was ever certain
	Lost    uint8 // the fence counter when the server lost data; 0 if it has not
	Time    uint8 // of the server; only if it may lose data
	Term    uint8 // how many failovers there were: the clocks of two servers differ

	Split   bool  // there are two servers
	Written Away  // the last write that the resource has taken: its token and fence
	Passed  uint8 // tokens, as bits, of which it has taken writes before that
}

// A Server is what the scripts read and write.
type Server struct {
	Holder  token // of the lock; 0 if it is free
	Rest    uint8 // of its TTL
	Counter uint8 // of fences
	Queue   [maxTokens]Entry
	Heard   [maxClients]uint8 // for how long a call of a process with an inbox still counts

	// The last handover.
	To    token
	Fence uint8
	Age   uint8

	Fresh  uint8 // how long the last enqueue or check-in still shows that they come
	Steady uint8 // for how long they have come
	Last   uint8 // ticket; only if the server may lose data
}

// An Entry is a token's place in the queue.
type Entry struct {
	Ticket uint8 // 0 if the token is not in the queue
	Seen   uint8 // how long ago it checked in, if it has no address
	Inbox  bool  // it has an address
}

// A Client is a Client of the core with its Locker. It makes one acquisition after
// the other.
type Client struct {
	Phase phase
	Token token // of the acquisition
	More  uint8 // acquisitions that it may still begin

	// Of a wait.
	Queued  bool
	Calling bool    // a call is in flight whose answer is waited for; of a lease too
	Again   bool    // another is to follow
	Ticket  uint8   // 0 if it has none yet
	Clock   uint8   // 1 + how long the call was in flight that read the server's clock; 0: not known
	Term    uint8   // in which that was
	Changed bool    // the inbox was opened or lost, which the wait has not noticed
	Early   Message // has overtaken the answer that is waited for

	// Of a lease. Fence is also kept between a late grant and the call that tries again.
	Fence uint8
	Rest  uint8 // until the deadline

	// A lease that was detached: another process may rely on it.
	Away Away

	Live bool // the inbox listens, as far as the client knows
	Sub  bool // as far as the server knows
}

// An Away is a detached lease.
type Away struct{ Token, Fence, Rest uint8 }

type phase uint8

const (
	idle    phase = iota
	trying        // TryAcquire, the first attempt
	waiting       // Acquire
	retry         // the same token is tried again after a late grant
	holding
	crashed
)

// A Token is what its client remembers of a token.
type Token struct {
	Owed  owed
	Until uint8 // for how long a release is still owed
	Known bool  // the inbox has a record of it
	Gone  bool  // that record says that a grant comes too late
}

type owed uint8

const (
	nothingOwed  owed = iota
	leaseOwed         // the release of a lease: any answer ends it
	attemptOwed       // that of an attempt, which may still be in flight
	attemptsOwed      // that of several attempts
)

// A Call is in flight to the server, or its answer is in flight back to the client.
type Call struct {
	Script  script // 0: no call
	Token   token
	Age     uint8 // since it was sent
	Answer  answer
	Wanted  bool  // somebody waits for the answer
	Inbox   bool  // the call brings an address
	Last    bool  // a release that was sent when the time for it had run out
	Ticket  uint8 // that it brings, or that is answered
	Fence   uint8 // answered
	Delay   uint8 // the age when the server read its clock
	Granted uint8 // how long ago the grant was, then
	Term    uint8
	Stale   bool // the inbox has changed since it was sent
	Copied  bool // the replica has what it wrote; kept only of an answer that counts then
	Former  bool // the former server has executed it
}

type script uint8

const (
	noScript script = iota
	tryScript
	enqueueScript
	checkInScript
	renewScript
	releaseScript
)

type answer uint8

const (
	unanswered answer = iota
	answerGranted
	answerWaits
	answerFound
	answerUnknown
	answerHeld    // of try: by another; of renew and release: yes
	answerNotHeld // of renew and release
	answerUnswept // the call is repeated
)

// A Message tells a client's inbox of a handover.
type Message struct {
	Token token // 0: no message
	Fence uint8
	Age   uint8 // since the handover
	Term  uint8
	Past  bool // the server has answered "waits" since, to the call that is in flight or one before
	Old   bool // and the client has read that answer
}

// A fault is something that goes wrong, of which there is a limited number.
// Overtaking is not a fault: it always happens.
type fault uint8

// unlimited is a number of faults that does not become less.
const unlimited = 255

const (
	delay       fault = iota // time passes while something is in flight
	timeout                  // a call is given up: it, or its answer, is lost or comes later
	drop                     // a message is lost
	cancel                   // a client does not want the lock any more
	crash                    // a client is gone
	subLoss                  // a subscription is lost
	detach                   // a lease is passed to another process, which never releases it
	wipe                     // the server loses all data
	failover                 // the replica becomes the server
	dropRelease              // a client that owes too many releases drops one
	turn                     // a lease is passed on to the next in the line of its process
	split                    // the former server executes a call, after the replica became the server
	numFaults
)
