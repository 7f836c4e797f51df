-- What package postgres needs in a database. Run it in a migration, or let CreateTable do so.
--
-- Each operation on a key locks its row of dlock first, and looks at the clock and at the queue afterwards: a function
-- sees what others have committed while it waited. So "it is held" and "nobody waits" are never both true for two
-- operations at the same time. No index has a column that changes more than once a day, so that updates are HOT.

CREATE TABLE dlock (
	key     bytea       PRIMARY KEY,
	token   bytea,                   -- of the holder; NULL after a release
	expires timestamptz NOT NULL,    -- the end of the lease, or of the last one
	granted timestamptz NOT NULL,    -- when the token got the key
	fence   bigint      NOT NULL,    -- of the latest grant
	used    date        NOT NULL     -- of the latest grant
) WITH (fillfactor = 50);
CREATE INDEX ON dlock (used);

CREATE TABLE dlock_queue (
	key    bytea       NOT NULL,
	token  bytea       NOT NULL,
	ticket bigint      NOT NULL,     -- its place: the time in µs, or more than the last one's
	ttl    bigint      NOT NULL,     -- in ms
	inbox  bigint      NOT NULL,     -- where it listens; 0 for nowhere
	number bigint      NOT NULL,     -- of the wait there
	seen   timestamptz NOT NULL,     -- its last call that wrote
	until  timestamptz,              -- when a message comes too late; NULL for never
	PRIMARY KEY (key, token)
) WITH (fillfactor = 50);
CREATE INDEX ON dlock_queue (key, ticket);

CREATE TABLE dlock_inbox (
	id   bigint      PRIMARY KEY,    -- a session that listens holds the advisory lock of this number
	seen timestamptz NOT NULL        -- when it last said so
) WITH (fillfactor = 50);

-- STABLE, as extract is: otherwise it is not inlined, and takes three times as long.
CREATE FUNCTION dlock_us(at timestamptz) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS
	'SELECT (extract(epoch FROM at) * 1000000)::bigint';

-- dlock_near is false if the clock was set back by more.
CREATE FUNCTION dlock_near(at timestamptz, seen timestamptz, most interval) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
	'SELECT seen IS NOT NULL AND at - seen < most AND seen - at < most';

-- dlock_next returns the waiter whose turn it is, and removes those before it that are dead. Its inbox is 0 if it can
-- take the key with a call only. The row of the key is locked.
CREATE FUNCTION dlock_next(k bytea, caller bytea) RETURNS dlock_queue LANGUAGE plpgsql AS $$
DECLARE
	w dlock_queue;
	at timestamptz := clock_timestamp();
BEGIN
	FOR w IN SELECT * FROM dlock_queue q WHERE q.key = k ORDER BY q.ticket LOOP
		IF w.token = caller THEN
			RETURN w;
		END IF;
		IF w.until IS NULL OR w.until > at THEN
			IF dlock_near(at, (SELECT i.seen FROM dlock_inbox i WHERE i.id = w.inbox), '5 s')
				AND NOT pg_try_advisory_xact_lock_shared(w.inbox)
			THEN
				RETURN w;
			ELSIF dlock_near(at, w.seen, least('2 s', w.ttl * interval '1 ms')) THEN
				w.inbox := 0;
				RETURN w;
			END IF;
		END IF;
		DELETE FROM dlock_queue q WHERE q.key = k AND q.token = w.token;
	END LOOP;
	RETURN NULL;
END $$;

-- dlock_serve gives a free key, whose row is locked, to the next waiter that can be told, and says whose turn it was: that
-- waiter's, or that of one that cannot be told, or of the caller; NULL if it is nobody's.
CREATE FUNCTION dlock_serve(d dlock, caller bytea) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
	w dlock_queue := dlock_next(d.key, caller);
	at timestamptz := clock_timestamp();
BEGIN
	IF w.token IS NULL OR w.token = caller OR w.inbox = 0 THEN
		RETURN w.token;
	END IF;
	UPDATE dlock AS l SET token = w.token, granted = at, used = at::date, fence = greatest(d.fence + 8, dlock_us(at)),
		expires = at + w.ttl * interval '1 ms'
	WHERE key = d.key RETURNING l.* INTO d;
	DELETE FROM dlock_queue q WHERE q.key = d.key AND q.token = w.token;
	-- Made at 0, a message has the waiter look, which waits for the standbys: this transaction does not if its session is ended
	-- while it waits, or its call is given up.
	IF pg_notification_queue_usage() < 0.9 THEN -- when it is full, no transaction that notifies can commit
		PERFORM pg_notify('dlock_' || w.inbox, concat_ws(' ', w.number, d.fence, dlock_us(d.expires) - w.ttl * 1000,
			CASE WHEN current_setting('synchronous_standby_names') = '' THEN dlock_us(at) ELSE 0 END));
	END IF;
	RETURN w.token;
END $$;

-- dlock_clean removes rows that nobody has used since the day before yesterday, but never one whose fence is ahead of the
-- clock. As it locks rows in any order, its caller locks no other row afterwards: a dlock_call with clean > 0 is the last one
-- of its statement.
CREATE FUNCTION dlock_clean(at timestamptz, most bigint, but bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM dlock WHERE key IN (SELECT o.key FROM dlock o WHERE o.used < at::date - 1 AND o.expires < at
		AND o.fence < dlock_us(at) AND o.key IS DISTINCT FROM but ORDER BY o.used LIMIT most FOR UPDATE SKIP LOCKED);
END $$;

-- dlock_call is one operation: A attempts, Q queues, C checks in, N renews, R releases, I inspects.
--
-- The verdict is 1 for "yes": granted, renewed, released; 2 if C finds a grant, 3 if the token is in the queue, 4 if C
-- does not find it there; otherwise 0. Times are in µs; since is the end of the lease less the TTL after 2, and when
-- the holder got the key otherwise.
--
-- A session keeps the plans of its functions. One that was made for a small table would read all of it when it has grown:
-- so there are no sequential scans.
CREATE FUNCTION dlock_call(op "char", k bytea, t bytea, ttl bigint, box bigint, num bigint, place bigint, patience bigint, clean bigint,
	OUT verdict int, OUT fence bigint, OUT holder bytea, OUT remaining bigint, OUT since bigint, OUT clock bigint,
	OUT ticket bigint, OUT ahead bigint)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
	d dlock;
	at timestamptz;
	lease interval := ttl * interval '1 ms';
	held boolean;
	turn bytea;
	mine boolean := true;
	chance double precision := 32 * random();
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN -- a snapshot would hide what others do meanwhile
		RAISE 'the isolation level is not READ COMMITTED' USING ERRCODE = 'DL001';
	END IF;
	IF op IN ('C', 'I') AND pg_is_in_recovery() THEN -- it is behind, and its clock may be another
		RAISE 'a standby is not asked' USING ERRCODE = 'read_only_sql_transaction';
	END IF;
	verdict := 0; fence := 0; holder := ''; remaining := 0; since := 0; clock := 0; ticket := 0; ahead := 0;
	IF op IN ('C', 'I') THEN -- most only read
		SELECT * INTO d FROM dlock WHERE key = k;
		at := clock_timestamp();
		held := coalesce(d.token IS NOT NULL AND d.expires > at, false);
		IF held AND d.token <> t AND op = 'C' THEN
			ticket := coalesce((SELECT q.ticket FROM dlock_queue q WHERE q.key = k AND q.token = t AND q.inbox = box AND q.inbox <> 0), 0);
		END IF;
	END IF;
	IF op <> 'I' AND (op <> 'C' OR ticket = 0) THEN
		LOOP
			at := clock_timestamp();
			IF op IN ('A', 'Q') THEN -- most keys are new
				INSERT INTO dlock SELECT k, t, at + lease, at, dlock_us(at), at::date
				WHERE NOT EXISTS (SELECT FROM dlock_queue q WHERE q.key = k) ON CONFLICT DO NOTHING;
				EXIT WHEN FOUND;
			END IF;
			SELECT * INTO d FROM dlock WHERE key = k FOR UPDATE;
			at := clock_timestamp();
			EXIT WHEN FOUND OR op IN ('N', 'R') OR op = 'C' AND NOT EXISTS (SELECT FROM dlock_queue q WHERE q.key = k);
			INSERT INTO dlock VALUES (k, NULL, at, at, dlock_us(at), at::date) ON CONFLICT DO NOTHING;
		END LOOP;
		IF clean > chance AND op IN ('A', 'Q') THEN
			PERFORM dlock_clean(at, greatest(clean, 32), k);
		END IF;
		IF d.key IS NULL AND op IN ('A', 'Q') THEN
			verdict := 1;
			fence := dlock_us(at);
			RETURN;
		END IF;
		held := coalesce(d.token IS NOT NULL AND d.expires > at, false);
		IF held AND d.token = t AND op IN ('N', 'R') THEN
			verdict := 1;
			UPDATE dlock SET token = CASE op WHEN 'N' THEN t END, expires = CASE op WHEN 'N' THEN greatest(expires, at + lease) ELSE at END
			WHERE key = k;
			IF op = 'N' OR NOT EXISTS (SELECT FROM dlock_queue q WHERE q.key = k) THEN
				RETURN;
			END IF;
			held := false;
		END IF;
		IF op = 'R' THEN
			DELETE FROM dlock_queue q WHERE q.key = k AND q.token = t;
		ELSIF op = 'C' THEN
			UPDATE dlock_queue q SET seen = at, inbox = box, number = num WHERE q.key = k AND q.token = t RETURNING q.ticket INTO ticket;
			ticket := coalesce(ticket, 0);
		END IF;
		IF op = 'C' AND held AND d.token = t THEN
			verdict := 2;
			fence := d.fence;
			since := dlock_us(d.expires) - ttl * 1000;
			clock := dlock_us(at);
			RETURN;
		ELSIF NOT held AND d.key IS NOT NULL THEN
			turn := dlock_serve(d, CASE WHEN op IN ('A', 'Q', 'C') THEN t END);
			mine := turn IS NULL OR turn = t;
			SELECT * INTO d FROM dlock WHERE key = k;
			held := d.token IS NOT NULL AND d.expires > at;
		END IF;
		IF op IN ('N', 'R') THEN
			RETURN;
		END IF;
		IF held AND d.token = t OR NOT held AND mine AND (op <> 'C' OR ticket > 0) THEN
			at := clock_timestamp();
			UPDATE dlock AS l SET token = t, used = at::date, fence = greatest(d.fence + 8, dlock_us(at)),
				granted = CASE WHEN held THEN d.granted ELSE at END,
				expires = CASE WHEN held THEN greatest(d.expires, at + lease) ELSE at + lease END
			WHERE key = k RETURNING l.fence INTO fence;
			DELETE FROM dlock_queue q WHERE q.key = k AND q.token = t;
			verdict := 1;
			RETURN;
		END IF;
		IF op = 'Q' THEN
			SELECT coalesce(max(q.ticket) + 1, 0) INTO ticket FROM dlock_queue q WHERE q.key = k;
			IF place = 0 THEN
				place := greatest(ticket, dlock_us(at));
			END IF;
			INSERT INTO dlock_queue AS q VALUES (k, t, place, ttl, box, num, at, at + patience * interval '1 ms')
			ON CONFLICT (key, token) DO UPDATE SET inbox = box, number = num, seen = at
			RETURNING q.ticket INTO ticket;
		END IF;
	END IF;
	IF held THEN
		holder := d.token;
		remaining := greatest(1, dlock_us(d.expires) - dlock_us(at));
		since := dlock_us(d.granted);
	END IF;
	clock := dlock_us(at);
	IF op IN ('Q', 'C') THEN
		verdict := CASE WHEN ticket = 0 THEN 4 ELSE 3 END;
		place := ticket;
		SELECT count(*) INTO ahead FROM (SELECT FROM dlock_queue q WHERE q.key = k AND q.ticket < place LIMIT 3) AS first;
	ELSIF op = 'I' THEN
		verdict := CASE WHEN held THEN 1 ELSE 0 END;
		SELECT count(*) INTO ahead FROM dlock_queue q WHERE q.key = k AND q.token IS DISTINCT FROM holder
			AND (q.until IS NULL OR q.until > at)
			AND dlock_near(at, greatest(q.seen, (SELECT i.seen FROM dlock_inbox i WHERE i.id = q.inbox)), '5 s');
	END IF;
END $$;

-- dlock_set takes all keys, or none if one is held by another token or has a queue.
CREATE FUNCTION dlock_set(ks bytea[], ts bytea[], ttls bigint[],
	OUT verdict int, OUT fence bigint, OUT holder bytea, OUT remaining bigint, OUT since bigint)
RETURNS SETOF record LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
	at timestamptz;
	d dlock;
	free boolean := true;
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE 'the isolation level is not READ COMMITTED' USING ERRCODE = 'DL001';
	END IF;
	INSERT INTO dlock SELECT k, NULL, clock_timestamp(), clock_timestamp(), dlock_us(clock_timestamp()) - 8, clock_timestamp()::date
	FROM unnest(ks) AS k ORDER BY k ON CONFLICT (key) DO UPDATE SET key = excluded.key WHERE false; -- which locks the rows that exist
	at := clock_timestamp();
	SELECT NOT EXISTS (SELECT FROM unnest(ks, ts) AS s (k, t) JOIN dlock l ON l.key = s.k
		WHERE l.token IS NOT NULL AND l.expires > at AND l.token <> s.t
			OR (l.token IS NULL OR l.expires <= at) AND EXISTS (SELECT FROM dlock_queue q WHERE q.key = s.k AND q.token <> s.t)) INTO free;
	FOR i IN 1 .. cardinality(ks) LOOP
		SELECT * INTO d FROM dlock WHERE key = ks[i];
		SELECT 0, 0, '', 0, 0 INTO verdict, fence, holder, remaining, since;
		IF free THEN
			UPDATE dlock l SET token = ts[i], used = at::date, fence = greatest(l.fence + 8, dlock_us(at)),
				granted = CASE WHEN l.token = ts[i] AND l.expires > at THEN l.granted ELSE at END,
				expires = greatest(CASE WHEN l.token = ts[i] THEN l.expires END, at + ttls[i] * interval '1 ms')
			WHERE l.key = ks[i] RETURNING l.fence INTO fence;
			DELETE FROM dlock_queue q WHERE q.key = ks[i] AND q.token = ts[i];
			verdict := 1;
		ELSIF d.token IS NOT NULL AND d.expires > at AND d.token <> ts[i] THEN
			holder := d.token;
			remaining := greatest(1, dlock_us(d.expires) - dlock_us(at));
			since := dlock_us(d.granted);
		ELSIF EXISTS (SELECT FROM dlock_queue q WHERE q.key = ks[i]) THEN
			verdict := 3;
		END IF;
		RETURN NEXT;
	END LOOP;
	PERFORM dlock_clean(at, 2 * cardinality(ks), NULL);
END $$;

-- dlock_listen says that a session listens. With the first call, inboxes go that were silent for a minute, and waiters
-- for a day.
CREATE FUNCTION dlock_listen(inbox bigint, first boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	at timestamptz := clock_timestamp();
BEGIN
	INSERT INTO dlock_inbox AS i VALUES (inbox, at) ON CONFLICT (id) DO UPDATE SET seen = at;
	IF first THEN
		DELETE FROM dlock_inbox WHERE id IN (SELECT i.id FROM dlock_inbox i WHERE i.seen < at - interval '1 minute' FOR UPDATE SKIP LOCKED);
		DELETE FROM dlock_queue WHERE (key, token) IN (SELECT q.key, q.token FROM dlock_queue q WHERE q.seen < at - interval '1 day'
			AND NOT EXISTS (SELECT FROM dlock_inbox i WHERE i.id = q.inbox) FOR UPDATE SKIP LOCKED);
	END IF;
END $$;
