// Package stress tests that locks on Redis keep their promises while everything fails. It has
// no code of its own, only tests. They need a redis-server.
//
// TestStress runs one round after the other. In a round, about thirty workers use six locks on
// one server, through all three client libraries, in this process and in child processes.
// They acquire, cancel, let leases expire, abandon them, and detach them. Meanwhile the test
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
//	DLOCK_STRESS=1h go test -timeout 0 -run TestStress ./backend/stress
//
// A failure shows the holds and the faults of the three seconds before and after it. The name
// of the failed subtest is the seed of its round. To run that round first:
//
//	DLOCK_STRESS_SEED=1234 go test -run TestStress ./backend/stress
//
// The seed determines the order of the faults and what each worker does, but not the timing,
// so a failure may need several runs to show again.
//
// DLOCK_STRESS is a duration as in [time.ParseDuration]. DLOCK_STRESS_SEED is a decimal
// number. DLOCK_STRESS_CHILD is set by the test for its child processes.
package stress
