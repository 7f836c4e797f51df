package history

import (
	"fmt"
	"strings"
	"time"
)

// An Operation is one call of a Locker for one key.
type Operation struct {
	Method     Method
	Client     string
	Key, Token string
	TTL        time.Duration

	Begin, End       int           // places in the order of all calls and returns, which is known even if the clock stands still
	Called, Returned time.Duration // 0 and Never, if it has not returned

	Outcome Outcome
	Holder  string        // of Refused and of Inspect: who holds the key; "" if unknown
	Fence   int64         // of Granted
	Since   time.Duration // of Granted: the store keeps the grant at least until Since+TTL
	Err     error
}

// Never is the End of an operation that has not returned.
const Never = int(^uint(0) >> 1)

// A Method is that of a Locker, or what happens to a client or to the store.
type Method int

// The methods.
const (
	TryAcquire Method = iota
	Acquire
	Renew
	Release
	Inspect
	Wipe   // all data is lost
	Outage // the client's connection fails
)

func (m Method) String() string {
	return [...]string{"TryAcquire", "Acquire", "Renew", "Release", "Inspect", "Wipe", "Outage"}[m]
}

// takes reports whether the method may make its token the holder.
func (m Method) takes() bool { return m == TryAcquire || m == Acquire }

// An Outcome is the answer to an operation.
type Outcome int

// The outcomes.
const (
	Unknown  Outcome = iota // an error, or no answer yet: it may take effect at any time, or never
	Granted                 // the token holds the key now
	Refused                 // another token holds it
	Held                    // the token held the key; of Inspect: somebody did
	NotHeld                 // it did not; of Inspect: nobody did
	Happened                // of Wipe and Outage
)

func (o *Operation) String() string {
	call := fmt.Sprintf("%v(%s)", o.Method, short(o.Token))
	switch o.Method {
	case Wipe:
		return "everything is lost"
	case Outage:
		return "the connection fails"
	case Inspect:
		call = "Inspect()"
	case TryAcquire, Acquire, Renew:
		call = fmt.Sprintf("%v(%s, %v)", o.Method, short(o.Token), o.TTL)
	}
	return call + " = " + o.answer()
}

func (o *Operation) answer() string {
	switch {
	case o.Outcome == Granted:
		return fmt.Sprintf("acquired, fence %d, since %s", o.Fence, millis(o.Since))
	case o.Outcome == Refused, o.Outcome == Held && o.Method == Inspect:
		return "held by " + short(o.Holder)
	case o.Outcome == NotHeld && o.Method == Inspect:
		return "not held"
	case o.Outcome == Held, o.Outcome == NotHeld:
		return fmt.Sprint(o.Outcome == Held)
	case o.End == Never:
		return "…has not returned"
	}
	return fmt.Sprint(o.Err)
}

// short is as much of a token as tells it from the others of a history.
func short(token string) string {
	if token == "" {
		return "?"
	}
	token = strings.TrimSuffix(token, ".") // without an owner's label
	if len(token) > 8 {
		token = token[:4] + "…" + token[len(token)-4:]
	}
	return fmt.Sprintf("%q", token)
}
