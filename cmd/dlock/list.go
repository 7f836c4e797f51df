package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// A row is a lock as people and programs see it. It has no token.
type row struct {
	Key     string    `json:"key"`
	Held    bool      `json:"held"`
	Owner   string    `json:"owner,omitempty"`
	Started time.Time `json:"started,omitzero"` // on the holder's clock or on the store's
	TTL     float64   `json:"ttl,omitempty"`    // in seconds; negative if the lease never ends
	Waiting int       `json:"waiting"`
	Foreign bool      `json:"foreign,omitempty"` // the holder is not a Client of dlock
	Prefix  *string   `json:"prefix,omitempty"`  // if it is not that of the command
	Waiters []waiter  `json:"waiters,omitempty"` // the first of them
}

type waiter struct {
	Owner string    `json:"owner,omitempty"`
	Since time.Time `json:"since,omitzero"` // on the waiter's clock
}

func newRow(key string, s dlock.Status) row {
	return row{
		Key: key, Held: s.Held, Owner: s.Owner, Started: s.Started, TTL: s.Remaining.Seconds(),
		Waiting: s.Waiting, Foreign: s.Held && s.Started.IsZero(),
	}
}

func (r row) fields(now time.Time) []string {
	name, ttl := r.Key, time.Duration(r.TTL*float64(time.Second)).Round(time.Millisecond).String()
	if r.Prefix != nil {
		name = *r.Prefix + r.Key
	}
	if r.TTL < 0 {
		ttl = "never ends"
	}
	owner := printable(r.Owner)
	if r.Foreign {
		owner = "(not of dlock)"
	}
	return []string{printable(name), owner, ago(now, r.Started), ttl, fmt.Sprint(r.Waiting)}
}

func ago(now, then time.Time) string {
	if then.IsZero() {
		return "-"
	}
	return now.Sub(then).Round(time.Second).String() + " ago"
}

func newList(s *store) *cobra.Command {
	var all, foreign, asJSON bool
	c := s.command("list [BEGINNING]", "list the locks whose keys begin with a text", cobra.MaximumNArgs(1), func(c *cobra.Command, args []string) error {
		if len(args) == 0 && !all && s.prefix == "" {
			return exit{exitUsage, errors.New("list looks at all keys: name the beginning of some, or use --prefix or --all")}
		}
		rows, err := s.list(c.Context(), strings.Join(args, ""), foreign)
		if err == nil {
			show(c.OutOrStdout(), rows, asJSON)
		}
		return err
	})
	c.Flags().BoolVar(&all, "all", false, "list all locks of the database")
	c.Flags().BoolVar(&foreign, "foreign", false, "list strings too that dlock has not written")
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON, one object to a line")
	return c
}

// show writes rows.
func show(out io.Writer, rows []row, asJSON bool) {
	buffered := bufio.NewWriter(out)
	defer buffered.Flush()
	if asJSON {
		for _, r := range rows {
			encode(buffered, r)
		}
		return
	}
	table := tabwriter.NewWriter(buffered, 0, 0, 2, ' ', 0)
	defer table.Flush()
	fmt.Fprintln(table, "KEY\tOWNER\tSTARTED\tTTL\tWAITERS")
	now := time.Now()
	for _, r := range rows {
		fmt.Fprintln(table, strings.Join(r.fields(now), "\t"))
	}
	for _, r := range rows {
		for i, w := range r.Waiters {
			fmt.Fprintf(table, "waiter %d of %d\t%s\t%s\n", i+1, r.Waiting, printable(w.Owner), ago(now, w.Since))
		}
	}
}

const (
	inspections = 64        // keys that are inspected at once
	ours        = "dlock1." // the begin of the tokens of a Client
)

// list returns the locks whose keys begin with a text, by key. It counts all who wait, whatever their prefix.
func (s *store) list(ctx context.Context, beginning string, foreign bool) ([]row, error) {
	rows, err := s.held(ctx, beginning, foreign)
	if err != nil || len(rows) == 0 {
		return rows, err
	}
	queues, err := s.queues(ctx)
	if err == nil {
		s.count(ctx, rows, queues)
	}
	return rows, err
}

func (s *store) held(ctx context.Context, beginning string, foreign bool) ([]row, error) {
	var keys []string
	for e, err := range s.locker.Scan(ctx, beginning) {
		if err != nil {
			return nil, unanswered(err)
		}
		if foreign || strings.HasPrefix(e.Token, ours) {
			keys = append(keys, e.Key)
		}
	}
	return inspect(ctx, s.locker, keys, foreign)
}

// inspect returns who holds some keys, of those that are held, by key.
func inspect(ctx context.Context, locker *rediscore.Locker, keys []string, foreign bool) ([]row, error) {
	slices.Sort(keys)
	keys = slices.Compact(keys)
	rows := make([]row, len(keys))
	c := dlock.New(locker)
	var all sync.WaitGroup
	errs := make([]error, inspections)
	for w := range inspections {
		all.Go(func() {
			for i := w; i < len(rows) && errs[w] == nil; i += inspections {
				status, err := c.Inspect(ctx, keys[i])
				if !errors.Is(err, dlock.ErrInvalid) { // no lock can have this key
					errs[w] = err
				}
				rows[i] = newRow(keys[i], status)
			}
		})
	}
	all.Wait()
	return slices.DeleteFunc(rows, func(r row) bool { return !r.Held || r.Foreign && !foreign }), errors.Join(errs...)
}

func newShow(s *store) *cobra.Command {
	var asJSON bool
	const about = "show who holds a lock, who waits for it, and when package once has run the job of this name"
	c := s.command("show KEY", about, cobra.ExactArgs(1), func(c *cobra.Command, args []string) error {
		status, err := dlock.New(s.locker).Inspect(c.Context(), args[0])
		if err != nil {
			return err
		}
		rows, more, failed := s.about(c.Context(), newRow(args[0], status))
		if asJSON {
			show(c.OutOrStdout(), rows, true)
			return failed
		}
		fmt.Fprint(c.OutOrStdout(), s.unheld(args[0], rows, more, failed))
		if rows = slices.DeleteFunc(rows, func(r row) bool { return !r.Held }); len(rows) > 0 {
			show(c.OutOrStdout(), rows, false)
		}
		return failed
	})
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON, one object to a line")
	return c
}

func newBreak(s *store) *cobra.Command {
	var yes bool
	var owner string
	const about = "take a lock from its holder, and give it to the next that waits"
	c := s.command("break KEY", about, cobra.ExactArgs(1), func(c *cobra.Command, args []string) error {
		return s.breakLock(c, args[0], owner, yes)
	})
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.Flags().StringVar(&owner, "owner", "", "do not ask, and break the lock only if its holder has this `label`")
	return c
}

func (s *store) breakLock(c *cobra.Command, key, owner string, yes bool) error {
	ctx := c.Context()
	l := dlock.New(s.locker)
	status, err := l.Inspect(ctx, key)
	switch {
	case err != nil:
		return err
	case !status.Held:
		return exit{exitHeld, fmt.Errorf("%s is free: there is no key %q", printable(key), s.prefix+key)}
	case newRow(key, status).Foreign:
		return exit{exitUsage, fmt.Errorf("%s is not of dlock: find out who wrote it, then DEL", printable(key))}
	case owner != "" && owner != status.Owner:
		return exit{exitHeld, fmt.Errorf("%s is held by %s", printable(key), printable(status.Owner))}
	}
	show(c.OutOrStdout(), []row{newRow(key, status)}, false)
	if owner == "" && !yes {
		fmt.Fprint(c.OutOrStdout(), "Has the holder stopped, or are its writes fenced? Type yes to break the lock: ")
		if answer, _ := bufio.NewReader(c.InOrStdin()).ReadString('\n'); strings.TrimSpace(answer) != "yes" {
			return exit{exitHeld, errors.New("nothing was changed")}
		}
	}
	if err := l.Break(ctx, status); err != nil {
		return err
	}
	fmt.Fprintf(c.OutOrStdout(), "The lock is broken. The old holder may work on until it renews its lease, "+
		"or for %v at most.\n", status.Remaining.Round(time.Second))
	return nil
}

func newWatch(s *store) *cobra.Command {
	var every time.Duration
	const about = "show the locks whose keys begin with a text, again and again"
	c := s.command("watch BEGINNING", about, cobra.ExactArgs(1), func(c *cobra.Command, args []string) error {
		if every < 100*time.Millisecond {
			return exit{exitUsage, fmt.Errorf("--every %v: less than 100ms", every)}
		}
		for before := map[string]row{}; ; time.Sleep(every) {
			rows, err := s.list(c.Context(), args[0], false)
			if err != nil {
				return err
			}
			if out, failed := os.Stdout.Stat(); failed == nil && out.Mode()&os.ModeCharDevice != 0 {
				fmt.Fprint(c.OutOrStdout(), "\x1b[H\x1b[2J")
				show(c.OutOrStdout(), rows, false)
			} else {
				before = changes(c.OutOrStdout(), time.Now(), before, rows)
			}
		}
	})
	c.Flags().DurationVar(&every, "every", time.Second, "between two looks")
	return c
}

// changes writes a line for each lock that was taken, released, or has another holder or number of waiters.
func changes(out io.Writer, now time.Time, before map[string]row, rows []row) (after map[string]row) {
	after = make(map[string]row)
	line := func(r row, what string) {
		fmt.Fprintf(out, "%s  %s  %s  %s  %d wait\n",
			now.Format(time.RFC3339), printable(r.Key), what, printable(r.Owner), r.Waiting)
	}
	for _, r := range rows {
		after[r.Key] = r
		was, known := before[r.Key]
		switch {
		case !known:
			line(r, "held by")
		case was.Owner != r.Owner || !was.Started.Equal(r.Started):
			line(r, "now held by")
		case was.Waiting != r.Waiting:
			line(r, "still held by")
		}
		delete(before, r.Key)
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		line(before[key], "no longer held by")
	}
	return after
}
