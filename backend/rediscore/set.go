package rediscore

import (
	"context"
	"errors"
	"fmt"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/rediserr"
)

// maxSet is how many locks a script takes: the server serves nobody else meanwhile, for about a millisecond.
const maxSet = 256

// TryAcquireSet implements [dlock.SetAcquirer] in one round trip. It returns [errors.ErrUnsupported] in these cases:
//   - There are more than 256 keys.
//   - In a cluster, the keys are of several slots. A common hash tag puts them into one.
//   - Elsewhere, the keys use both counters of the prefix: see "What is stored" in the package documentation.
//   - A key is free, but waiters are queued for it, alive or dead. An attempt for each key serves them.
//   - A key is not that of a lock, or its slot moves.
//   - The server or a proxy refuses the script, which has keys in a loop, even with [WithQueue](false). The Locker does not
//     send it again.
func (l *Locker) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	names, args, err := l.checkSet(ctx, set)
	if err != nil {
		return nil, err
	}
	var keys *lockKeys
	if len(set) <= maxSet && !l.setsRefused.Load() {
		keys = l.keysOfSet(names)
	}
	if keys == nil {
		return nil, errors.ErrUnsupported
	}
	call := Call{Script: setScript, Args: args, keys: keys}
	reply, err := l.evalOne(ctx, call)
	if err != nil && l.tryAlone(ctx, call, err) {
		return nil, errors.ErrUnsupported
	}
	return readSet(reply, err, len(set))
}

// checkSet returns the keys of a set, and the arguments of setScript.
func (l *Locker) checkSet(ctx context.Context, set []dlock.Acquisition) (names, args []string, err error) {
	if err := l.ready(ctx); err != nil {
		return nil, nil, err
	}
	if len(set) == 0 {
		return nil, nil, mark(invalid("set: empty"))
	}
	known := make(map[string]bool, len(set))
	for i, a := range set {
		if err := l.checkArgs(a.Key, a.Token, a.TTL); err != nil {
			return nil, nil, mark(fmt.Errorf("%w (element %d of a set)", err, i))
		}
		if known[a.Key] {
			return nil, nil, mark(invalid("set: key %q is named twice", a.Key))
		}
		known[a.Key] = true
		names, args = append(names, a.Key), append(args, a.Token, milliseconds(a.TTL))
	}
	for _, a := range set {
		if err := l.post.use(a.Key, a.Token); err != nil {
			return nil, nil, err
		}
	}
	return names, args, nil
}

// readSet reads the reply of acquire-set.lua for n locks.
func readSet(reply any, err error, n int) ([]dlock.Attempt, error) {
	if err != nil {
		return nil, err
	}
	attempts := make([]dlock.Attempt, n)
	switch r := reply.(type) {
	case int64:
		if r == 0 {
			return nil, errors.ErrUnsupported
		}
		for i := range attempts {
			attempts[i] = dlock.Attempt{Acquired: true, Fence: r + int64(i)*fenceStep}
		}
		return attempts, nil
	case []any:
		if len(r) != n {
			break
		}
		for i, held := range r {
			if held == nil {
				attempts[i].Free = true
				continue
			}
			hold, err := parseHold(held)
			if err != nil {
				return nil, err
			}
			attempts[i] = refused(hold)
		}
		return attempts, nil
	}
	return nil, unexpected(reply)
}

// fenceStep is the distance between the fences of a set.
const fenceStep = 8

// tryAlone reports whether a set that has failed had no effect, and an attempt for each key has an answer: its command
// in the script has failed for one of the keys, or the script as a whole was refused, because of the slots or of its text.
func (l *Locker) tryAlone(ctx context.Context, call Call, err error) bool {
	text := rediserr.Answer(err)
	switch {
	case dlock.NoEffect(err) && failedInside(err), moving(err), rediserr.CrossSlot(text):
		return true
	case !l.unknown(err, text):
		return false
	case l.keysNow(call) == nil: // it was of several slots
		return true
	}
	if !l.conn.unsupported(err) || l.conn.eval(ctx, Trial(call)).Err != nil {
		return false
	}
	l.setsRefused.Store(true)
	return true
}
