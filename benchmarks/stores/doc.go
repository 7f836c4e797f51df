// Package stores measures the stores that people lock with, each in its usual way, on this machine, and writes the tables of
// docs/performance.md about them. It is not released, and runs in a clone of the repository, on Linux with redis-server on PATH
// and PostgreSQL installed:
//
//	DLOCK_REDIS=1 DLOCK_POSTGRES=1 go test -C benchmarks/stores -timeout 1h -run TestMeasure -measure
//
// It takes six minutes. It writes what it has measured to stores.json, then the tables, and prints them. The servers keep
// their data in TMPDIR, which must be on a disk: in memory, an fsync costs nothing.
//
//   - dlock has one Client for all callers of a process, on Redis (go-redis, no persistence) and on PostgreSQL (a pool of four
//     connections).
//   - pg_advisory_lock and pg_advisory_xact_lock have a connection for each caller. Neither writes anything.
//   - FOR UPDATE locks a row that exists, in a transaction, on a connection for each caller. PostgreSQL notes the lock in the
//     row.
//   - etcd is one server, in a process of its own, which always calls fsync. Callers share a client and a session. Those that want
//     the same key have a session each, as one session would hold it twice.
//
// Those that write in PostgreSQL are measured with synchronous_commit on and off. The server has fsync on, and its defaults
// otherwise, but for the number of connections, and a deadlock_timeout of 60 s: with the default of 1 s, each of 1,000 waiters looks
// for deadlocks, which stops the server for minutes. pgx prepares the statements that have arguments. BEGIN, the lock and COMMIT are
// three round trips.
//
// A cycle is an acquisition of a free lock with a new key, and its release. Its server CPU is that of all processes of
// the server. The open loop starts 300 cycles a second, whatever becomes of those before; latency counts from when a cycle is
// due to the answer to its release.
//
// Each of 8 or 32 waiters has a client and connections of its own, like a process, and a proxy adds 2 ms to its round trips. It
// takes one lock again and again, and holds it for 1 ms. The gap is from the end of that to the next waiter's grant, in
// round trips of a bare client at the same time.
//
// A killed holder is a process whose connections the kernel closes. A stopped holder keeps them open, as far as the server can
// see, like a holder that has lost its network or its power. The TTL is 5 s, and the next waits for at most 10 s.
//
// All contestants take turns in each row, so a slow minute of the machine hits all.
package stores
