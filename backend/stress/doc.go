// Package stress tests that locks on Redis keep their promises while everything fails. It has
// no code of its own, only tests. They run on a server, so only if DLOCK_REDIS is set.
//
// TestStress runs one round after the other. In a round, about thirty workers use six locks on
// one server, through all three client libraries, in this process and in child processes.
// They acquire, cancel, let leases expire, abandon them, detach them, lead (package election) and take permits
// (package semaphore). Meanwhile the test
//
//   - cuts, blocks and slows connections, and loses or delays single requests and replies
//     (package faultproxy),
//   - restarts, suspends and pauses the server, and makes it lose its data and its scripts,
//   - stops child processes (SIGSTOP), continues them and kills them; this needs Linux,
//   - cuts groups of workers off for good, and cancels a hundred waits at once.
//
// A round ends when its time is over and each of these things has happened. Then the faults
// end, and the test checks that
//
//   - no two workers were certain of a lock at the same time,
//   - fences rose, also across a loss of all data,
//   - the server lost no lease before its deadline, except with all its data,
//   - every waiter was served,
//   - no key but the fence counters, no subscription, no connection and no goroutine is left.
//
// By default there is one round, of 2 s or until each kind of fault has happened. To run for
// an hour:
//
//	DLOCK_REDIS=1 DLOCK_LONG=stress=1h go test -timeout 0 -run TestStress ./backend/stress
//
// A failure shows the holds and the faults of the three seconds before and after it. The name
// of the failed subtest is the seed of its round. To run that round first:
//
//	DLOCK_REDIS=1 DLOCK_LONG=stress-seed=1234 go test -run TestStress ./backend/stress
//
// The seed determines the order of the faults and what each worker does, but not the timing,
// so a failure may need several runs to show again.
//
// # Sets
//
// TestSets has 32 workers in 8 processes take random sets of 8 of 64 keys (Client.DoAll), with each library on
// one server, and on a cluster whose slots move all the time. In the second half of its time, which is
// stress of DLOCK_LONG for each or 2 s, a process is killed each second. The test checks that no two workers were
// certain of a key at the same time, that fences rose, that each waiter was served, and that a TTL after the
// end no key is held. It logs how many sets there were in a second, and the longest wait. It needs Linux:
//
//	DLOCK_REDIS=1 DLOCK_LONG=stress=1m go test -v -timeout 0 -run TestSets ./backend/stress
//
// # Sentinel and a cluster
//
// TestTopology uses locks on Sentinel (a master, two replicas, three Sentinels) and on a cluster (three
// masters with a replica each), with go-redis and rueidis, with rediscore.WithReplicas for all replicas
// of a master and without. redigo knows neither topology. Every 5 s, or when all servers are in their
// places again, a fault strikes: a master is killed, suspended, cut off from its replicas and
// Sentinels, replaced on request, or loses slots ([redistest.Bed]). The test checks that
//
//   - with WithReplicas no two workers were certain of a lock at the same time. Without, it logs how
//     often they were, after each kind of fault,
//   - fences rose in the order of the holds. Without WithReplicas, two masters may grant a lock: if it was requested
//     when the other had granted it, the fence is higher,
//   - no wait took longer than the failover (with WithReplicas: until all replicas were back), the TTL,
//     and what clients need to find the new master,
//   - a nightly job that several processes start in the middle of a failover, with WithOutage, runs
//     once, and none of them fails,
//   - no key but the fence counters, no subscription and no goroutine is left.
//
// It runs only if it is given a time:
//
//	DLOCK_REDIS=1 DLOCK_LONG=topology=2m go test -v -timeout 0 -run TestTopology ./backend/...
//
// That also runs the whole suite of package conformance on both, for each library.
// topology-fault=stepped_down names the only fault to strike with.
//
// # Independent servers
//
// TestMajority uses locks on 3 servers, on 5, and on 5 whose clocks are an hour apart from one to the
// next, through package redlock, with all three libraries. Every 5 s, or when all servers vote again,
// a fault strikes one server, as many as a majority can do without, or all: they are killed and come
// back later, restarted at once, suspended for longer than the TTL, or delayed. Killed and restarted
// servers are empty, but for those with different clocks. The test checks that
//
//   - no two workers were certain of a lock at the same time,
//   - fences rose in the order of the holds,
//   - locks were granted while a minority was away,
//   - no wait took longer than the fault, the TTL, and what clients need to connect again,
//   - no key but the fence counters, no subscription and no goroutine is left.
//
// It runs only if it is given a time:
//
//	DLOCK_REDIS=1 DLOCK_LONG=majority=2m go test -v -timeout 0 -run TestMajority ./backend/stress
//
// TestBrokenLocksAreFound shows what the checks see of locks in memory that are broken.
package stress
