package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// NoCheckIns lets waiters be served by notifications only, until the returned function is called.
func NoCheckIns() func() {
	before := checkInPeriod
	checkInPeriod = time.Hour
	return func() { checkInPeriod = before }
}

// AwaitInbox returns when a Locker listens.
func AwaitInbox(l *Locker) {
	for l.post.inbox.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
}

// Deafen has a Locker listen in another database, where it hears only what is for another.
func Deafen(l *Locker, dsn string) { l.db = deaf{l.db, dsn} }

type deaf struct {
	source
	dsn string
}

func (d deaf) dial(ctx context.Context) (*pgx.Conn, error) {
	c, err := pgx.Connect(ctx, d.dsn)
	if err == nil {
		_, err = c.Exec(ctx, "LISTEN other; NOTIFY other")
	}
	return c, err
}

// Unprepared has a Locker prepare no statements, as behind some poolers.
func Unprepared(l *Locker) { l.form.Store(int32(unprepared)) }

// Attempts makes attempts in one statement.
func Attempts(l *Locker, keys ...string) error {
	calls, results := make([]call, len(keys)), make([]result, len(keys))
	for i, key := range keys {
		calls[i] = call{op: attempt, key: key, token: "x", ttl: time.Minute}
	}
	l.send(context.Background(), calls, results)
	return results[0].err
}
