// Package stress tests that locks on Redis keep their promises while everything fails. It has
// no code of its own, only tests. They run on servers, so only if DLOCK_REDIS is set. What whole Clients do in
// virtual time, under faults that a seed draws, is tested in package [github.com/dlock-go/dlock/internal/sim/world].
//
// A round has workers acquire, cancel, let leases expire, abandon them, detach them, take sets of keys, lead (package
// election) and take permits (package semaphore), while faults strike. Then the faults end, and the test checks that
//
//   - no two workers were certain of a lock at the same time,
//   - fences rose in the order of the holds, also across a loss of all data,
//   - no server lost a lease before its deadline, except with all its data,
//   - every waiter was served,
//   - no key but the fence counters, no subscription and no goroutine is left.
//
// A failure shows the holds and the faults of the three seconds before and after it.
//
// # One server
//
// TestStress runs one round after the other. Its workers use six locks on one server through all three client libraries.
// Faults cut, block and slow connections, lose or delay single requests and replies (package faultproxy), restart, suspend and
// pause the server, make it lose its data and its scripts, and cut groups of workers off for good. A round ends when its time is over and each of these things has happened: by default after one round of 2 s or more.
// To run for an hour:
//
//	DLOCK_REDIS=1 DLOCK_LONG=stress=1h go test -timeout 0 -run TestStress ./backend/stress
//
// # Sentinel and a cluster
//
// TestTopology uses locks on Sentinel (a master, two replicas, three Sentinels) and on a cluster (three
// masters with a replica each), with go-redis and rueidis, with rediscore.WithReplicas for all replicas
// of a master and without. redigo knows neither topology. Every 5 s, or when all servers are in their
// places again, a fault strikes: a master is killed, suspended,
// replaced on request, or loses slots ([redistest.Bed]). Without WithReplicas, two masters may grant a lock: that is
// only logged, and a fence is higher if it was requested when the other had been granted. The test also checks that
//
//   - when all servers are in their places again, nobody waits for longer than the TTL, and what clients need to find the new
//     master,
//   - a nightly job that several processes start in the middle of a failover, with WithReplicas and WithOutage, runs
//     once, and none of them fails.
//
// It runs only if it is given a time:
//
//	DLOCK_REDIS=1 DLOCK_LONG=topology=2m go test -v -timeout 0 -run TestTopology ./backend/...
//
// That also runs the whole suite of package conformance on both, for each library.
//
// # Independent servers
//
// TestMajority uses locks on 3 servers, on 5, and on 5 whose clocks are an hour apart from one to the
// next, through package redlock, with all three libraries. A fault strikes one server, as many as a majority can do without, or
// all: they are killed and come back later, restarted at once, suspended for longer than the TTL, or delayed. Killed and
// restarted servers are empty, but for those with different clocks. The test also checks that locks were granted while a
// minority was away. It runs only if it is given a time:
//
//	DLOCK_REDIS=1 DLOCK_LONG=majority=2m go test -v -timeout 0 -run TestMajority ./backend/stress
package stress
