// Package backend is the directory of dlock's backends. It has no code of its own.
//
//   - [github.com/dlock-go/dlock/backend/goredis], [github.com/dlock-go/dlock/backend/rueidis]
//     and [github.com/dlock-go/dlock/backend/redigo] keep leases on Redis, each through the
//     client library of that name.
//   - [github.com/dlock-go/dlock/backend/rediscore] is what these three share, and what a
//     backend for another Redis library needs.
//   - [github.com/dlock-go/dlock/backend/redlock] makes one lock of several independent stores.
//   - [github.com/dlock-go/dlock/backend/postgres], a module of its own, keeps leases in PostgreSQL.
//   - [github.com/dlock-go/dlock/backend/memory] keeps leases in the memory of one process.
//   - [github.com/dlock-go/dlock/backend/breaker] is a circuit breaker around any of them.
//
// The tests in this directory run the same check on every Redis adapter, or use several
// adapters together: settings of clients and servers, users with few rights, clusters and
// failovers, closed clients, and which errors say that a call had no effect. A test of one
// adapter is in that adapter's package. The tests under random faults are in
// [github.com/dlock-go/dlock/backend/stress].
package backend
