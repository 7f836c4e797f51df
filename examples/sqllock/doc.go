// Package sqllock keeps dlock's leases in a table of a PostgreSQL database, reached through database/sql. It is the worked
// example of docs/writing-a-backend.md: take it as the template of a backend for your own store, or use it as it is, for a
// service that has PostgreSQL and nothing else.
//
//	db, err := sql.Open("pgx", "postgres://…") // with github.com/jackc/pgx/v5/stdlib
//	…
//	locker := sqllock.New(db)
//	if err := locker.CreateTable(ctx); err != nil { … }
//	client := dlock.New(locker)
//
// Waiters ask again and again; nothing in the database waits for a lock.
//
// # What is stored
//
// One row for each key: the key, the holder's token, when the lease ends, and the fence of the latest grant. Keys and
// tokens are bytea, which is compared byte by byte: text has a collation and an encoding, and refuses NUL. A row whose
// lease has ended stays for a day, to remember the fence, and is then deleted by the grants of other keys: each adds one
// row at most and deletes up to two. So the table holds the keys of about a day, and nobody has to clean it.
//
// The fence of a grant is the larger of the key's last one + 8 and the server's clock in microseconds. It rises as long as
// the row is there, and it still rises when the row is gone, deleted after a day or lost with the table, because time has
// moved on: provided that the clock of the server (or of the one that replaces it) is not set back by more than has passed
// since the key's last grant.
//
// # What each operation is
//
// One statement, which commits by itself, so that there is no transaction of which a part could be lost, and no state of a
// session: poolers like PgBouncer may stand in between. TTLs are relative, and all times are the server's, from
// clock_timestamp(): now() is the time at which the transaction began, before it waited for a row that another had locked.
//
// Statements that change something fail on a standby and on a server that is read-only. So "not held" always comes from a
// server that could have written, and a replica that is behind cannot announce a loss that has not happened.
//
// No statement waits for a row while it has locked another, except RenewBatch, which
// locks in the order of the keys: there are no deadlocks between them.
//
// # What a user must know
//
// The isolation level must be read committed, which is PostgreSQL's default. There a statement that has waited for a row
// looks at it anew. With default_transaction_isolation set to anything higher it fails instead with SQLSTATE 40001, now and
// then, and with serializable also for keys that nobody else wants. No lock is granted twice, but calls fail.
//
// Give the locks a [database/sql.DB] of their own, of a few connections. One that is shared with the work may have none
// left for the renewal just when all workers are busy. If a ctx ends during a call, pgx closes the connection that it used.
//
// database/sql repeats a call by itself, up to twice more, when the driver returns [database/sql/driver.ErrBadConn]. A
// backend must know that no request is repeated whose first try may have reached the server. pgx returns ErrBadConn if the
// connection was closed before the call, and if not one byte of the statement was written; any other error it returns as it
// is, and the outcome is unknown, as [dlock.Locker] says. Other drivers may be less careful. Errors of connecting, and
// refusals (no such table, no rights, a server that is read-only), are marked with [dlock.NoEffectError]: nothing is owed
// after them.
//
// Leases are as durable as the server's commits. With synchronous_commit turned off, a crash forgets the latest; with
// asynchronous replication, a failover does. Use fences where that matters. A clock that is set forward ends leases early,
// one that is set back prolongs them.
//
// It is written for pgx: RenewBatch passes slices, which other drivers do not take as
// arrays. Its tests run on PostgreSQL 15; it needs 9.6 at least.
package sqllock
