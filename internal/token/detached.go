package token

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"time"
)

// MaxSteps is how many times in a row a lease can be passed on: each grant has 8 fences, one for each of
// its holders.
const MaxSteps = 7

// maxHeld is the longest time a lease can have been held when it is adopted: longer than any
// real lease, and small enough to calculate with.
const maxHeld = 100 * 365 * 24 * time.Hour

const detachedPrefix = "dlock1-"

var encoding = base64.RawURLEncoding.Strict()

// A Detached is a lease on its way between two processes: what its next holder needs to know. Its text has a prefix with
// a version, and base64 of the fields and of a check sum of them. Each Detached has one text.
type Detached struct {
	Key, Token string        // of 1 byte or more
	Fence      int64         // of the next holder
	Step       int           // from 1 to MaxSteps
	Deadline   time.Time     // on the wall clock of the last holder, in milliseconds
	Held       time.Duration // in milliseconds
}

// Text returns d as printable ASCII text.
func (d *Detached) Text() []byte {
	b := []byte{byte(d.Step)}
	b = binary.AppendVarint(b, d.Fence)
	b = binary.AppendVarint(b, d.Deadline.UnixMilli())
	b = binary.AppendVarint(b, d.Held.Milliseconds())
	b = binary.AppendVarint(b, int64(len(d.Key)))
	b = append(b, d.Key...)
	b = append(b, d.Token...)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return encoding.AppendEncode([]byte(detachedPrefix), b)
}

// ParseDetached returns the Detached whose text this is, with a key of at most maxKey bytes. Otherwise it returns
// nil, and why text is no such text. The reason does not show the text.
func ParseDetached(text string, maxKey int) (d *Detached, reason string) {
	encoded, ok := strings.CutPrefix(text, detachedPrefix)
	if !ok {
		return nil, "does not begin with " + detachedPrefix
	}
	b, err := encoding.DecodeString(encoded)
	if err != nil {
		return nil, err.Error()
	}
	if len(b) < 5 || crc32.ChecksumIEEE(b[:len(b)-4]) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return nil, "cut off or changed"
	}
	step, b := int(b[0]), b[1:len(b)-4]
	var numbers [4]int64
	for i := range numbers {
		n, size := binary.Varint(b)
		if size <= 0 {
			return nil, "malformed"
		}
		numbers[i], b = n, b[size:]
	}
	fence, deadline, held, size := numbers[0], numbers[1], numbers[2], numbers[3]
	if step < 1 || step > MaxSteps || held < 0 || held > maxHeld.Milliseconds() || size < 1 || size > int64(maxKey) || size >= int64(len(b)) {
		return nil, "malformed"
	}
	d = &Detached{
		Key:      string(b[:size]),
		Token:    string(b[size:]),
		Fence:    fence,
		Step:     step,
		Deadline: time.UnixMilli(deadline),
		Held:     time.Duration(held) * time.Millisecond,
	}
	if string(d.Text()) != text {
		return nil, "malformed"
	}
	return d, ""
}
