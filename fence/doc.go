// Package fence lets a database refuse the late writes of a process that has lost its lock.
//
// A process can be stopped for longer than its lease lasts, by its garbage collector, its machine or
// its network. When it goes on, another process has the lock, and the first does not know yet. Its
// writes arrive all the same. Only the resource that it writes to can refuse them. So each write
// carries a [Stamp] of its lease, and the resource remembers the latest Stamp that it has accepted.
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
//	err := locks.Do(ctx, "account:7", func(ctx context.Context, lease *dlock.Lease) error {
//		stamp, err := fence.Of(lease)
//		if err != nil {
//			return err
//		}
//		tx, err := fences.Begin(ctx, db, nil, stamp)
//		if err != nil {
//			return err // fence.ErrStale: another process has the lock
//		}
//		defer tx.Rollback()
//		// Read and write with tx.
//		return tx.Commit()
//	})
//
// What holds then:
//
//   - If Commit returns nil, the writes are done, and no later holder had written before. That is
//     so even if Do returns [dlock.ErrLost] afterwards: do not repeat the work then.
//   - If Begin returns [ErrStale], nothing is written. Another process has the lock, and does the work.
//     The one exception is a store of locks that has lost its data, and whose clock was then set back:
//     its next fences are too small. Acquire again.
//   - If Commit returns an error and the connection is broken, the outcome is unknown, as for each
//     transaction. Find out in a new one.
//   - A transaction sees what all earlier holders have written, if it reads after Begin. What was read
//     before is outdated.
//   - Two leases with equal fences, which two masters can grant while one replaces the other, do
//     not both write: the first that does is obeyed. If the masters have granted fences in the wrong
//     order, the larger one is obeyed, though its lease was granted earlier.
//
// The check guards what the transaction writes, and nothing else. Send mail, or charge a card, with an
// idempotency key. A key guards only those writers that check it: each writer of the data must.
//
// With a transaction that somebody else has begun, call [Table.Check] first. A transaction with
// several locks, such as a transfer, gives all Stamps to one call:
//
//	tx, err := fences.Begin(ctx, db, nil, from, to)
//
// # PostgreSQL
//
// Transactions of one lease run side by side. All isolation levels work. Above READ COMMITTED, the
// first transaction of each lease takes two more round trips, and the database may refuse a
// transaction with the code 40001, as it always may there: begin again. The user needs the rights
// SELECT, INSERT and UPDATE on the table.
//
// A process that is stopped inside a transaction keeps its row locked, so its successor waits, and its
// lease does not help. Set a limit that is shorter than the TTL, on the connection or for the user:
//
//	ALTER ROLE shop SET idle_in_transaction_session_timeout = '10s'
//
// The check costs a round trip, and about 0.05 ms of work. [Table.Query] saves the round trip with a
// driver that sends batches, such as pgx. On one machine without a disk, where a transaction takes
// 0.18 ms, it takes 30 % longer with the check in the batch, and 62 % longer with a check of its
// own. A network and a disk make these shares smaller.
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
// Transactions of one lease run one after the other. All isolation levels work. Tables must be InnoDB's.
// The check takes two round trips. A key has at most 1,024 bytes. Against a process that is stopped
// inside a transaction, set idle_transaction_timeout on MariaDB. MySQL has only wait_timeout, which
// counts for all idle connections.
//
// # SQLite
//
// SQLite lets one transaction write at a time, so a fenced transaction waits for all others that write.
// Set a busy_timeout, or the driver returns an error instead. The process that is stopped inside a
// transaction is on the same machine, and keeps the database locked until it goes on or is killed.
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
// Data in Redis is written by a script that begins with this prologue. KEYS[1] is the register, a
// key of its own. It needs the hash tag of the data ("{account:7}:fence"), must not expire or be evicted,
// and goes when the data goes. ARGV[1] and ARGV[2] are the Stamp's Fence and Holder.
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
