package stores

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/dlock-go/dlock/benchmarks/internal/figures"
)

// What it costs to say whose turn it is: handovers beside the plain commits of other sessions. Transactions that notify
// commit one after the other, since they hold a lock of the whole server until their commit is on the disk.
const (
	handovers = 1000 // a second
	waiters   = 32   // processes, with a connection each
	others    = 8    // sessions that commit again and again
	look      = 10 * time.Millisecond
)

// A way tells waiter $1 the time $2.
type way struct {
	name, tell string
	channel    string // that waiters listen to; # is the waiter
	reads      bool   // the table, in place of that
}

const baton = "UPDATE baton SET sent = $2 WHERE waiter = $1"

var ways = []way{
	{name: "no handovers"},
	{name: "handovers, nobody is told", tell: baton},
	{"NOTIFY, a channel for each process", "WITH u AS (" + baton + ") SELECT pg_notify('baton' || $1::int, $1 || ' ' || $2::bigint)", "baton#", false},
	{"NOTIFY, a channel for all", "WITH u AS (" + baton + ") SELECT pg_notify('baton', $1::int || ' ' || $2::bigint)", "baton", false},
	{name: "each reads the table every 10 ms", tell: baton, reads: true},
}

// hear calls heard with what a waiter is told.
func (w way) hear(ctx context.Context, c *pgx.Conn, waiter int, heard func(sent int64)) (err error) {
	if !w.reads {
		_, err = c.Exec(ctx, "LISTEN "+strings.Replace(w.channel, "#", strconv.Itoa(waiter), 1))
	}
	for last := int64(0); err == nil; {
		var to int
		var sent int64
		if w.reads {
			time.Sleep(look)
			err = c.QueryRow(ctx, "SELECT waiter, sent FROM baton WHERE waiter = $1", waiter).Scan(&to, &sent)
		} else if n, failed := c.WaitForNotification(ctx); failed != nil {
			err = failed
		} else {
			_, err = fmt.Sscan(n.Payload, &to, &sent)
		}
		if err == nil && to == waiter && sent != last {
			last = sent
			heard(sent)
		}
	}
	return err
}

// notifications measures all ways, with synchronous_commit on and off.
func (b *bench) notifications(ctx context.Context, m *figures.Measurement) (err error) {
	for _, commit := range []string{"on", "off"} {
		for _, w := range ways {
			fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), "commit", commit+":", w.name)
			if failed := b.beside(ctx, commit, w, m.Of("commit "+commit, w.name)); failed != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", w.name, failed))
			}
		}
	}
	return err
}

func (b *bench) beside(ctx context.Context, commit string, w way, to *figures.Result) error {
	server := b.servers["postgres"]
	pool, err := dial(ctx, server.addr, commit, 2*waiters+others)
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = pool.Exec(ctx, `DROP TABLE IF EXISTS baton, plain;
		CREATE TABLE plain (id int PRIMARY KEY, n int) WITH (fillfactor = 50); INSERT INTO plain SELECT generate_series(0, 99), 0;
		CREATE TABLE baton (waiter int PRIMARY KEY, sent bigint) WITH (fillfactor = 50); INSERT INTO baton SELECT generate_series(0, 99), 0`)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	all, ctx := errgroup.WithContext(ctx)
	session := func(work func(*pgx.Conn) error) {
		all.Go(func() error {
			c, err := pool.Acquire(ctx)
			if err == nil {
				defer c.Release()
				err = work(c.Conn())
			}
			if ctx.Err() != nil { // the end
				return nil
			}
			return err
		})
	}
	var during atomic.Bool
	var told, committed atomic.Int64
	again := func(c *pgx.Conn, done *atomic.Int64, sql string, args ...any) error {
		_, err := c.Exec(ctx, sql, args...)
		if during.Load() {
			done.Add(1)
		}
		return err
	}
	for i := range others {
		session(func(c *pgx.Conn) (err error) {
			for err == nil {
				err = again(c, &committed, "UPDATE plain SET n = n + 1 WHERE id = $1", 10*i)
			}
			return err
		})
	}
	delays := make([][]time.Duration, waiters)
	for i := range waiters {
		if w.tell != "" {
			session(func(c *pgx.Conn) (err error) {
				const pause = waiters * time.Second / handovers
				for due := time.Now().Add(time.Duration(i) * pause / waiters); err == nil; due = due.Add(pause) {
					time.Sleep(time.Until(due))
					err = again(c, &told, w.tell, i, time.Now().UnixNano())
				}
				return err
			})
		}
		if w.reads || w.channel != "" {
			session(func(c *pgx.Conn) error {
				return w.hear(ctx, c, i, func(sent int64) {
					if during.Load() {
						delays[i] = append(delays[i], time.Since(time.Unix(0, sent)))
					}
				})
			})
		}
	}
	time.Sleep(b.window / 2)
	from, before := time.Now(), server.cpu()
	during.Store(true)
	time.Sleep(b.window)
	during.Store(false)
	seconds, cpu := time.Since(from).Seconds(), server.cpu()-before
	end()
	err = all.Wait()
	to.Figures["others"] = []float64{float64(committed.Load()) / seconds}
	to.Figures["handovers"] = []float64{float64(told.Load()) / seconds}
	to.Figures["server %"] = []float64{100 * cpu.Seconds() / seconds}
	if heard := slices.Concat(delays...); len(heard) > 0 {
		to.Figures["p50 ms"], to.Figures["p99 ms"] = []float64{quantile(heard, 0.5)}, []float64{quantile(heard, 0.99)}
	}
	return err
}
