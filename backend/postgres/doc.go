// Package postgres keeps dlock's leases in PostgreSQL, for a service that has a database and no Redis. Waiters queue in
// order: a release gives the key to the next of them in the same statement, and a notification tells it.
//
//	pool, err := pgxpool.New(ctx, "postgres://…")
//	…
//	locker := postgres.New(pool)
//	if err := locker.CreateTable(ctx); err != nil { … }
//	locks := dlock.New(locker)
//
// If the lock and the rows that it protects are in one database, package [github.com/dlock-go/dlock/fence] makes the
// writes safe, too; see the example: a transaction that changes rows checks that no later holder has been there.
//
// There is no WithTx, which would take a lock in the transaction of the rows. A lease has to be committed before the work
// begins, for others to see it and for a renewal to extend it. In an open transaction, all who ask for the key would wait
// for its row until the end, and so would the calls that travel with theirs. A lock that ends with a transaction needs no
// package: SELECT … FOR UPDATE locks a row until then.
//
// # What is stored
//
// [schema.sql] has three tables and the functions that change them. Run it in a migration, or call
// [Locker.CreateTable]. [Locker.Schema] returns it for other names.
//
// Table dlock has a row for each key: the holder's token, the end of the lease, and the fence of the latest grant. Keys and
// tokens are bytea, which is compared byte by byte. A key has at most 1,024 bytes, and so has the token of a waiter. A row
// stays when its lease has ended, to remember the fence. Statements that ask for keys delete rows, about two for each key,
// that nobody has taken since the day before yesterday. So the table has the keys of about two days, and nobody has to clean
// it.
//
// Table dlock_queue has a row for each waiter, and dlock_inbox one for each process that waits. No index has a column
// that changes between two grants of a day, so updates are HOT: with a fillfactor of 50, a page is cleaned when it is
// read, and autovacuum has little to do.
//
// The fence of a grant is the larger of the key's last one + 8 and the server's clock in microseconds. It rises as long as
// the row is there, and no row is deleted whose fence is ahead of the clock. After a failover or a restored backup that has
// lost grants it still rises, unless the clock of the server is behind the key's last grant.
//
// # Calls
//
// Each call is one statement that commits by itself, so no state of a session is lost between two. Calls that are made
// at the same time travel together in one statement, over two connections of the pool: many callers share a commit. A set is a
// statement of its own. TTLs are relative, and all times are clock_timestamp() of the server. What changes a row reads the
// clock after it has locked the row.
//
// Statements lock the rows of keys in the order of the keys, so there are no deadlocks between them. They run as READ
// COMMITTED. If default_transaction_isolation is another level, the Locker begins a transaction for each statement, in the same
// round trip; behind a pooler that forgets prepared statements, that takes three.
//
// After an error with an SQLSTATE and the severity ERROR, the server has rolled the statement back, so it matches
// [dlock.NoEffectError]: 55P03 after lock_timeout, 57014 after statement_timeout, 40P01, and those for missing rights or
// tables. The exceptions are class 08 and 40003. An error while a connection is opened, such as 53300, matches it, too: nothing
// was sent. With the severity FATAL or PANIC the session has ended, and the outcome is unknown, as after a connection that
// broke, and after a ctx that ended before the answer. If that call travels alone, pgx closes its connection.
//
// A standby refuses all calls with 25006, and a server with default_transaction_read_only those that write. Nothing happens.
// The connection is then closed, so that the pool dials again: with several hosts and target_session_attrs=read-write in the
// URL, it finds the new primary.
//
// # Waiting
//
// While something waits, the Locker has one connection that is not of the pool. It listens to a channel of its own, says
// every two seconds that it is alive, and holds an advisory lock with a random number. A waiter whose process has not said
// so for five seconds, or whose session has ended, gets no notification. The key is reserved for it if the last call that
// wrote its row is less than two seconds old, and less than its TTL. Otherwise it is skipped. The connection is closed when
// nothing has waited for ten seconds.
//
// Each waiter also looks every two seconds, and when the holder's lease ends: a notification that is lost costs no more
// than that. Without the connection, the first waiter asks every 100 ms, the second every 200 ms, and those from the fourth on
// every 400 ms, but each at least six times in a TTL.
//
// PgBouncer in transaction mode does not pass notifications on. The Locker finds out, since it does not hear its own, and
// calls the function of [WithInboxError] once. A Client counts such waits, and its Observer hears of each. The queue works
// on. Behind PgBouncer older than 1.21, statements are not prepared, which the Locker finds out, too.
//
// In PostgreSQL, transactions that notify commit one after the other, each with its own write to the disk and its own wait for a
// synchronous standby. All statements of a server that hand over a key share that limit: together, they commit as often as one session
// can. Other transactions, and calls that find no waiter, do not wait for them. The page docs/performance.md has figures. If a
// session that listens sits in a transaction until the queue of NOTIFY is nearly full, a release notifies nobody: the waiter finds
// that it has the key within about two seconds.
//
// # What survives what
//
// A lease is as durable as a commit. With synchronous_commit=off, a crash of the server forgets the latest calls: a key
// may be granted twice, with fences that rise. A failover to a standby forgets what was not replicated; with
// synchronous_standby_names and synchronous_commit=on, nothing. Then a waiter that is notified makes a call before it has
// the key: if a session is ended while it waits for the standby, PostgreSQL commits and notifies without the standby.
//
// A clock that is set forward ends leases early, and one that is set back prolongs them.
//
// # Rights
//
// A user needs USAGE on the schema, SELECT, INSERT, UPDATE and DELETE on the three tables, and EXECUTE on the functions, which
// is granted to all by default. LISTEN and pg_notify need no right, so users of the database can forge a notification.
//
// It is tested with PostgreSQL 15, and uses nothing that is newer than 11. It requires pgx 5.13.0: older releases can report a
// call whose answer was lost as one that was not sent, in a transaction and in the simple protocol.
package postgres
