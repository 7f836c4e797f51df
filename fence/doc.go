// Package fence lets a database refuse the late writes of a process that has lost its lock.
//
// A process can be stopped for longer than its lease lasts, by its garbage collector, its machine or
// its network. When it resumes, another process has the lock, and the first does not know yet. Its
// writes still arrive. Only the resource that it writes to can refuse them. So each write carries a
// [Stamp] of its lease, and the resource remembers the latest Stamp that it has accepted.
//
// # A fenced write
//
// Once, for example with the other migrations, create a table next to the data, in the same database:
//
//	var fences = fence.Postgres("dlock_fence") // or MySQL, or SQLite
//
//	_, err := db.ExecContext(ctx, fences.Schema())
//
// Then, under the lock, begin each transaction with [Table.Begin] in place of [sql.DB.BeginTx]:
//
//	locks := dlock.New(backend, dlock.WithFence(true)) // refuses stores that have no fences
//
//	done := false
//	err := locks.Do(ctx, "account:7", func(ctx context.Context, lease *dlock.Lease) error {
//		stamp, err := fence.Of(lease)
//		if err != nil {
//			return err
//		}
//		tx, err := fences.Begin(ctx, db, nil, stamp)
//		if err != nil {
//			return err
//		}
//		defer tx.Rollback()
//		// Read and write with tx.
//		err = tx.Commit()
//		done = err == nil
//		return err
//	})
//	switch {
//	case done: // the work is done, even if errors.Is(err, dlock.ErrLost)
//	case errors.Is(err, fence.ErrStale): // another process has the lock, and this transaction wrote nothing
//	case err != nil: // as for each transaction
//	}
//
// To see a late writer refused, use package memory in a test, and its Expire in place of a
// stopped process: see the example of [Stamp.Admits].
//
// What holds then:
//
//   - If Commit returns nil, the writes are done, and no later holder had written before. That is
//     so even if Do returns [dlock.ErrLost] afterwards: do not repeat the work then.
//   - If Begin returns [ErrStale], this transaction has written nothing. Another process has or had the
//     lock, and the Stamp stays refused. If there is work left that the other does not do, acquire the lock
//     again.
//   - If Commit returns an error that is not the database's, such as that of ctx or of the connection, the
//     outcome is unknown, as for each transaction. Insert an operation ID with a unique key in the same
//     transaction: if it was written, a repetition finds it.
//   - If the database ends a transaction because of a conflict, begin another one with the same Stamp. The
//     codes are below. Begin does so by itself while it checks. [Table.Check] returns [ErrRetry] then.
//   - An earlier holder is refused once a later one has committed a transaction that checks. So commit even
//     if the work ends without a write, because of what was read.
//   - A transaction sees what all earlier holders have written, if it reads after Begin. What was read
//     before is outdated.
//
// The check guards what the transaction writes, and nothing else. Send mail, or charge a card, with an
// idempotency key. The check stops only writers that make it: each writer of the data must.
//
// In a transaction that other code has begun, call [Table.Check] first. A transaction with
// several locks, such as a transfer, gives all Stamps to one call:
//
//	err := client.DoAll(ctx, []string{from, to}, func(ctx context.Context, leases *dlock.Leases) error {
//		stamps, err := fence.OfAll(leases)
//		if err != nil {
//			return err
//		}
//		tx, err := fences.Begin(ctx, db, nil, stamps...)
//		…
//	})
//
// # After lost data and failovers
//
// After FLUSHALL, or a restart without data, the next fence is larger, since fences follow the clock.
//
// While Sentinel or a cluster replaces a master, both the old and the new one can grant the lock,
// unless the locks wait for all replicas (WithReplicas). Fences follow the clocks of the masters, so the
// fence of the new holder is:
//
//   - Larger, unless the clocks differ by more than the time between the grants.
//     When the new holder has written, the old one's writes are refused.
//   - Equal. The holder that writes first wins. The other one gets ErrStale.
//   - Smaller. If the old holder has written, the new one gets ErrStale, and so does each later one
//     until the fences are larger: acquire again. If it has not, both holders write, and the late
//     writes of the old one are accepted: the table cannot know which lease is the later one.
//
// # PostgreSQL
//
// The driver is pgx, through database/sql or by itself. No parameter is needed, and those for a pooler
// (default_query_exec_mode) do no harm. The user needs the rights SELECT, INSERT and UPDATE on the
// table. Transactions of one lease run concurrently.
//
// All isolation levels work. Above READ COMMITTED, the first transaction of each lease takes two
// more round trips. The codes of conflicts are 40001, which is for these levels, and 40P01, a deadlock.
//
// A process that is stopped inside a transaction keeps its row locked, so its successor waits even when the
// lease has ended. Set a limit that is shorter than the TTL, in the URL of the connection or for the user:
//
//	ALTER ROLE shop SET idle_in_transaction_session_timeout = '10s'
//
// The check costs a round trip, and about 0.02 ms of work. [Table.Query] saves the round trip with a
// driver that sends batches, such as pgx. On one machine without a disk, transactions take longer by the
// shares below. A disk makes them smaller.
//
//	transaction               with Query in the batch    with a check of its own
//	0.12 ms, one write        15 to 21 %                 38 to 45 %
//	0.2 ms, three writes      10 to 13 %                 27 to 30 %
//	0.4 ms, seven writes       6 to 7 %                  15 to 16 %
//
//	query, args, err := fences.Query(stamp)
//	...
//	batch := &pgx.Batch{}
//	batch.Queue(query, args...)
//	batch.Queue("UPDATE account SET balance = balance - $2 WHERE id = $1", 7, 100)
//	results := tx.SendBatch(ctx, batch) // of a pgx.Tx, never of a pool: that would commit at once
//	var accepted bool
//	err = results.QueryRow().Scan(&accepted) // pgx.ErrNoRows: refused; roll back
//	...
//	err = results.Close() // the error of the UPDATE; if there is none, commit
//
// # MySQL and MariaDB
//
// The driver is go-sql-driver/mysql. Set interpolateParams=true: the check then takes two round trips, and
// otherwise four. clientFoundRows may be true or false. All isolation levels work: REPEATABLE READ, the
// default, and READ COMMITTED too. Tables must be InnoDB's. A key has at most 1,024 bytes. Transactions of
// one lease run one after the other. The codes of conflicts are 1213, a deadlock, and 1205, a lock wait
// that timed out.
//
// Against a process that is stopped inside a transaction, set idle_transaction_timeout=10 in the DSN
// for MariaDB. MySQL has only wait_timeout, which counts for all idle connections. A transaction that waits
// for longer than innodb_lock_wait_timeout, 50 s, gets an error.
//
// # SQLite
//
// The driver is modernc.org/sqlite, or another with SQLite 3.35 or newer. SQLite lets one transaction write at
// a time, so a fenced transaction waits for all others that write. Set a busy_timeout, or the driver returns
// an error instead: for this driver, ?_pragma=busy_timeout(5000). The code of a conflict is 5, SQLITE_BUSY.
// BEGIN IMMEDIATE is not needed, because the check writes, and comes first. With :memory: each connection has
// a database of its own: use a file, or SetMaxOpenConns(1).
//
// A process that is stopped inside a transaction keeps the database locked until it goes on or is killed. If
// it goes on, its transaction may commit: nobody has written since.
//
// # HTTP
//
// If the data is behind a service, the client sends the Stamp along, and the service checks it in the
// transaction that writes. A check before the transaction would guard nothing, so there is no middleware.
//
//	fence.SetHeader(request.Header, stamp) // the client
//
//	stamp, err := fence.FromHeader(r.Header, "account:"+r.PathValue("id")) // the service: 428 if it fails
//	...
//	tx, err := fences.Begin(r.Context(), db, nil, stamp) // 412 if errors.Is(err, fence.ErrStale)
//
// A Stamp is no proof of who sends it. A client could make one up with a fence so large that it
// locks all others out, so take Stamps only from clients that you trust. [Stamp.MarshalText] is the form
// for messages of other kinds.
//
// # Redis
//
// Data in Redis is written by a script that begins with this prologue. KEYS[1] is the register, a key
// of its own. It needs the hash tag of the data ("{account:7}:fence"), must not expire or be evicted,
// and is deleted with the data. ARGV[1] and ARGV[2] are the Stamp's Fence and Holder.
//
//	local last = redis.call('HMGET', KEYS[1], 'fence', 'holder')
//	local old, new = last[1] or '0', ARGV[1]
//	if #new < #old or #new == #old and (new < old or new == old and ARGV[2] ~= last[2]) then
//	  return redis.error_reply('STALE a later holder has been here')
//	end
//	redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'holder', ARGV[2])
//
// The writes follow in the same script. If it fails after the first write, Redis keeps what is written.
// A failover of the server that has the data can forget the register together with the last writes.
//
// # Other resources
//
// [Stamp.Admits] is the rule as a function, for a resource that is written in Go. Compare, remember and
// write in one atomic step.
//
// # Keeping rows
//
// There is one row for each key, of about 100 bytes. Delete a row only together with the data that it
// guards: a late writer with an old fence would be accepted again. If a row has a fence that is too
// large, because somebody made it up, stop all holders of the key and delete the row.
package fence
