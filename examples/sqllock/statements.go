package sqllock

import "strings"

// on returns a statement on the table. In all of them $1 is the key, $2 the token
// and $3 the TTL in milliseconds; in renewBatch they are arrays of these.
func (l *Locker) on(stmt string) string { return strings.ReplaceAll(stmt, "{table}", l.quoted) }

// A lease ends at expires; token is NULL once it was released. Fence is that of the
// latest grant. The index is for the deletion of old rows.
const (
	createTable = `
CREATE TABLE {table} (
	key     bytea       PRIMARY KEY,
	token   bytea,
	expires timestamptz NOT NULL,
	fence   bigint      NOT NULL
)`
	createIndex = `CREATE INDEX ON {table} (expires)`
)

// acquire returns the fence of the grant; or the holder's token and what remains of its lease in microseconds; or no row,
// if another was granted the key during the statement, so that its snapshot does not show the holder.
//
// A refusal only reads: waiters who ask again and again write nothing and lock no row. To be granted, the row is inserted,
// or locked and looked at anew. Clock and fence of that moment decide. Then old rows are deleted: none but those that
// nobody has locked, so that nothing is waited for while the granted row is locked, and none before the grant, which the
// condition on granted makes sure of. Their index serves now(), which does not change during a statement, and not
// clock_timestamp().
const acquire = `
WITH holder AS (
	SELECT token, expires FROM {table}
	WHERE key = $1 AND token <> $2 AND expires > clock_timestamp()
), granted AS (
	INSERT INTO {table} AS lock (key, token, expires, fence)
	SELECT $1, $2, clock_timestamp() + $3::bigint * interval '1 millisecond',
		(extract(epoch FROM clock_timestamp()) * 1000000)::bigint
	WHERE NOT EXISTS (SELECT FROM holder)
	ON CONFLICT (key) DO UPDATE SET
		token   = excluded.token,
		expires = greatest(lock.expires, clock_timestamp() + $3::bigint * interval '1 millisecond'),
		fence   = greatest(lock.fence + 8, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
	WHERE lock.token IS NULL OR lock.token = excluded.token OR lock.expires <= clock_timestamp()
	RETURNING fence
), old AS (
	SELECT key FROM {table}
	WHERE expires < now() - interval '1 day' AND key <> $1 AND EXISTS (SELECT FROM granted)
	ORDER BY expires LIMIT 2 FOR UPDATE SKIP LOCKED
), deleted AS (
	DELETE FROM {table} AS lock USING old WHERE lock.key = old.key
)
SELECT fence, NULL AS token, NULL AS remaining FROM granted
UNION ALL
SELECT NULL, token, greatest(1, extract(epoch FROM expires - clock_timestamp()) * 1000000)::bigint FROM holder`

// renew and release lock the row first, and look at the clock then. A condition on the row itself would be looked at before
// the statement waits for it, and not again if whoever had locked it has changed nothing: a lease that has expired
// meanwhile would be renewed.
const (
	renew = `
WITH locked AS (
	SELECT expires FROM {table} WHERE key = $1 AND token = $2 FOR UPDATE
)
UPDATE {table} SET expires = greatest(locked.expires, clock_timestamp() + $3::bigint * interval '1 millisecond')
FROM locked
WHERE key = $1 AND locked.expires > clock_timestamp()`

	// The row stays, because it remembers the fence.
	release = `
WITH locked AS (
	SELECT expires FROM {table} WHERE key = $1 AND token = $2 FOR UPDATE
)
UPDATE {table} SET token = NULL, expires = clock_timestamp()
FROM locked
WHERE key = $1 AND locked.expires > clock_timestamp()`
)

// inspect returns the holder's token and what remains of its lease in microseconds, or no row.
const inspect = `
SELECT token, greatest(1, extract(epoch FROM expires - clock_timestamp()) * 1000000)::bigint
FROM {table}
WHERE key = $1 AND token IS NOT NULL AND expires > clock_timestamp()`

// renewBatch returns the keys and tokens that it has renewed. Of several renewals of
// one lease the longest counts, as if they came one after the other. Rows are locked
// in the order of their keys, so that two batches do not wait for each other.
const renewBatch = `
WITH batch AS (
	SELECT key, token, max(ttl) AS ttl
	FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) AS renewal (key, token, ttl)
	GROUP BY key, token
), locked AS (
	SELECT key, lock.expires, batch.ttl FROM {table} AS lock JOIN batch USING (key, token)
	ORDER BY key FOR UPDATE OF lock
)
UPDATE {table} AS lock
SET expires = greatest(locked.expires, clock_timestamp() + locked.ttl * interval '1 millisecond')
FROM locked
WHERE lock.key = locked.key AND locked.expires > clock_timestamp()
RETURNING lock.key, lock.token`
