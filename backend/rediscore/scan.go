package rediscore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/dlock-go/dlock"
)

// A Scanner is a [Conn] that finds keys.
type Scanner interface {
	// Scan goes through the strings of all masters with SCAN, and passes on the names that match pattern,
	// in batches of about ScanCount or fewer. It may repeat names. It ends with the error of found, if
	// that returns one. Calls of found do not overlap.
	Scan(ctx context.Context, pattern string, found func(names []string) error) error
}

// ScanCount is the COUNT of a Scanner's SCAN: the server looks at that many keys at a time, within
// about half a millisecond.
const ScanCount = 1000

// scanParts is how many holders Scan asks for at once, so that the server serves others between.
const scanParts = 100

// An Entry is a key that Scan has found.
type Entry struct {
	Key        string
	dlock.Hold // Waiting is 0
}

// Scan returns the keys under the Locker's prefix that start with beginning, each with its holder. It looks
// at all keys of the database, ScanCount at a time, and never uses KEYS. Keys of other programs are among
// them: their Token is any text. A key that exists during the whole scan is found at least once. Others may
// be found. An error is the last element. It is [errors.ErrUnsupported] if the [Conn] is no [Scanner].
func (l *Locker) Scan(ctx context.Context, beginning string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		err := l.ready(ctx)
		scanner, ok := l.conn.conn.(Scanner)
		if err == nil && !ok {
			err = fmt.Errorf("%w: %T cannot scan", errors.ErrUnsupported, l.conn.conn)
		}
		if err == nil {
			err = scanner.Scan(ctx, Literally(l.prefix+beginning)+"*", func(names []string) error {
				for part := range slices.Chunk(names, scanParts) {
					if err := l.scanned(ctx, part, func(e Entry) bool { return yield(e, nil) }); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err != nil && err != errEnough {
			yield(Entry{}, err)
		}
	}
}

var errEnough = errors.New("the caller of Scan has seen enough")

// scanned looks who holds the keys of these names, in one round trip to each master.
func (l *Locker) scanned(ctx context.Context, names []string, yield func(Entry) bool) error {
	calls := make([]Call, 0, len(names))
	for _, name := range names {
		if !strings.Contains(name, companionMark) {
			keys := &lockKeys{slot: uint16(Slot(name))}
			keys.texts[0] = name
			calls = append(calls, Call{Script: holderScript, keys: keys})
		}
	}
	if len(calls) == 0 {
		return nil
	}
	results := make([]Result, len(calls))
	l.evalAll(ctx, calls, results)
	for i, r := range results {
		hold, err := parseInspection(r.Reply)
		if r.Err != nil {
			err = r.Err
		}
		switch {
		case err == nil && !hold.Held, err != nil && strings.HasPrefix(err.Error(), "WRONGTYPE"):
			continue // it has changed since
		case err != nil:
			return err
		}
		if !yield(Entry{strings.TrimPrefix(calls[i].Keys()[0], l.prefix), hold}) {
			return errEnough
		}
	}
	return nil
}

// Literally returns the pattern for SCAN that matches only text.
func Literally(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(text)
}
