// Package redlock is a lock on a majority of independent stores: a [dlock.Locker] made of N others,
// of which more than half decide. It goes on while a minority of them is down, slow or has lost its
// data, and no failover can lose a grant. One server with fences is simpler and cheaper, and the
// better choice if you can wait out its outage; docs/redlock.md compares.
//
//	nodes := []dlock.Locker{goredis.New(a), goredis.New(b), goredis.New(c)}
//	client := dlock.New(redlock.New(nodes))
//
// The nodes may be of any kind, and of different kinds. All clients must have the same nodes
// and the same longest TTL. If all nodes are [quorum.Voter]s, as the Redis backends and memory
// are, grants have fences, and the guard is on.
//
// # The guard
//
// A node that restarts empty would vote for a second holder. So a node that has forgotten what it
// knew, or may have, is young, and does not count until the longest TTL plus 1 % and 1 s have
// passed: all leases that it may have forgotten have ended then. The same holds after the first
// start of the nodes: until a majority is old enough, attempts fail with a [MajorityError] that
// says how long that takes.
//
// # What is guaranteed
//
// No two clients are certain of the same key at the same time, and fences rise from one lease to
// the next, as long as clocks run at the same rate to within 1 %. Their times may differ; but if a
// node forgets its data, fences rise only if the nodes' clocks agree to within the longest TTL. A
// paused process may still act after its lease has ended: fences are for that.
//
// Set a TTL of at least five round trips to the slowest node of the fastest majority. With a shorter
// one, the lease may end before releases and renewals are answered.
//
// # Watching the nodes
//
// While a majority works, calls succeed, and no error shows that a node is dead. [OnNodeChange]
// reports a node when it becomes slow, young or down, and when it is up again:
//
//	redlock.New(nodes, redlock.WithNames("a", "b", "c"), redlock.OnNodeChange(func(n redlock.NodeState) {
//		slog.Warn("redlock node", "node", n.Node, "status", n.Status, "error", n.Err)
//	}))
//
// [Locker.Nodes] returns the state of all nodes at any time, and RegisterNodes of package
// observe/otel makes a metric of it. All three show what the calls of this Locker have found, and
// send nothing. So a node that dies while nobody calls is noticed at the next call or renewal. A
// hung node is down after at most 5 s without an answer (see [WithNodeLimit]).
//
// Errors name the nodes, too. [WithNames] gives names; the default is the address that the Redis
// client knows, as goredis and rueidis do for a single server, or else the index.
//
// # Rules
//
// The page docs/redlock.md lists 19 rules of which votes and fences count, and what each of them prevents. Beside them:
//
//   - All nodes are asked at once, and the call returns when a majority has decided. A vote that
//     comes later remains part of the lease.
//   - A token has one request at a time at a node.
//   - In an attempt, a young node counts like one that does not answer.
//   - A node that has lacked a lease for a quarter of the TTL gets it again. Its vote counts from the next
//     renewal on.
//   - If votes are split, the holder of the first node that answers, in an order that depends on
//     the key, keeps its votes, and the others give theirs back. A wait fails if its token can have no vote any more at so
//     many nodes that the others that are up are no majority.
//   - A release that a minority did not answer is repeated there. A node that has answered all votes and releases of
//     an attempt with an unknown outcome gets no further release once the caller waits for the late answers: see
//     [dlock.UnansweredError].
package redlock
