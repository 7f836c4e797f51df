package fence

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock"
)

// A Stamp says which lease a write belongs to. It goes along with the write. It is no secret: it
// does not help to release the lock.
type Stamp struct {
	Key    string
	Fence  int64
	Holder string // tells leases with equal fences apart: 24 hexadecimal digits of a hash of the token
}

// holderBytes is how much of the hash is in a Stamp.
const holderBytes = 12

// Of returns the Stamp of a lease that is held. Otherwise it returns [dlock.Lease.Err]. The error
// matches [errors.ErrUnsupported] if the store of the locks has no fences, or if a stand-in
// has granted the lease.
//
// One call for each lease is enough. The writes need no new look at the lease: the resource decides.
func Of(l *dlock.Lease) (Stamp, error) {
	if err := l.Err(); err != nil {
		return Stamp{}, err
	}
	if l.Fence() <= 0 {
		return Stamp{}, fmt.Errorf("fence: %v: %w: it has no fence", l, errors.ErrUnsupported)
	}
	sum := sha256.Sum256([]byte("dlock fence\x00" + l.Token()))
	return Stamp{l.Key(), l.Fence(), hex.EncodeToString(sum[:holderBytes])}, nil
}

// OfAll returns the Stamps of a set, in the order of [dlock.Leases.All]. It fails as [Of] does.
func OfAll(ls *dlock.Leases) ([]Stamp, error) {
	stamps := make([]Stamp, len(ls.All()))
	for i, l := range ls.All() {
		var err error
		if stamps[i], err = Of(l); err != nil {
			return nil, err
		}
	}
	return stamps, nil
}

// Admits reports whether a resource that accepted s most recently accepts next: a larger fence
// of the same key, or the same fence and holder. The zero Stamp stands for a resource that has
// accepted none. Admits is for resources that are kept in Go. [Table.Check] follows the same
// rule in a database.
func (s Stamp) Admits(next Stamp) bool {
	switch {
	case next.valid() != nil:
		return false
	case s == Stamp{}:
		return true
	}
	return s.Key == next.Key && (s.Fence < next.Fence || s == next)
}

// String returns the text of MarshalText.
func (s Stamp) String() string {
	return fmt.Sprintf("%d;%s;%s", s.Fence, s.Holder, url.QueryEscape(s.Key))
}

// MarshalText returns the Stamp as text: fence, holder and the escaped key, separated by semicolons.
// It contains no spaces, and fits into a header, a message or a command line.
func (s Stamp) MarshalText() ([]byte, error) { return []byte(s.String()), s.valid() }

// UnmarshalText reads what MarshalText has written. The error matches [dlock.ErrInvalid] if text is
// something else.
func (s *Stamp) UnmarshalText(text []byte) error {
	fields := append(strings.Split(string(text), ";"), "", "")
	fence, err := strconv.ParseInt(fields[0], 10, 64)
	key, escape := url.QueryUnescape(fields[2])
	read := Stamp{key, fence, fields[1]}
	if err := cmp.Or(err, escape, read.valid()); err != nil || read.String() != string(text) {
		return fmt.Errorf("fence: %w stamp %.100q", dlock.ErrInvalid, text)
	}
	*s = read
	return nil
}

// valid returns an error if s cannot be the Stamp of a lease.
func (s Stamp) valid() error {
	holder, err := hex.DecodeString(s.Holder)
	if s.Key == "" || s.Fence <= 0 || err != nil || len(holder) != holderBytes || hex.EncodeToString(holder) != s.Holder {
		return fmt.Errorf("fence: %w stamp %.100q: it is not from Of", dlock.ErrInvalid, s.String())
	}
	return nil
}
