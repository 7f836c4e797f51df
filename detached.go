package dlock

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"strings"
	"time"
)

// maxSteps is how many times in a row a lease can be passed on: each grant has
// 8 fences of its own, one for each of its holders.
const maxSteps = 7

// A Detached is a lease on its way from one holder to the next, in this process
// or in another: [Lease.Detach] makes it, [Client.Adopt] takes it up. It is a
// secret: whoever has it holds the lock. MarshalText prints it whole, to be sent
// to the taker; its other representations show only key and fence.
//
// A Detached must be adopted at most once. Whoever delivers it more than once
// (a queue that repeats messages) makes more than one holder; a Client refuses
// that only as long as a lease that it adopted from the same Detached lives.
type Detached struct {
	secret *detached // a pointer, because fmt does not look behind it; nil in the zero value, which nobody can adopt
}

type detached struct {
	key, token string
	fence      int64 // of the taker
	step       int   // from 1 to maxSteps
}

var errNotDetached = invalid("Detached: empty, not made by Detach")

// Detach gives the lease up without releasing it, for another to adopt: the lease
// ends with [ErrReleased] and is not renewed any more, and its taker has until
// the Deadline to adopt it. The taker's fence is one higher. A lease that has
// ended cannot be detached, and one that was passed on seven times in a row
// cannot be an eighth time, since another grant may have the fence after that.
func (l *Lease) Detach() (Detached, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.look(); err != nil {
		return Detached{}, wrapUnlessLost(l.values, "detach", l.key, err)
	}
	if l.step >= maxSteps {
		return Detached{}, wrap(l.values, "detach", l.key, invalid("Detach: %d in a row, the most that one grant allows", l.step))
	}
	h := detached{key: l.key, token: l.token, step: l.step + 1}
	if l.fence != 0 {
		h.fence = l.fence + 1
	}
	l.end(ErrReleased)
	l.release.settled = true
	return Detached{&h}, nil
}

// Adopt takes up a lease that was detached, with the options of c. It asks the
// store for a full TTL. The error matches [ErrLost] if the lease has run out, and
// [ErrInvalid] if h is not a Detached that can be adopted; after any other error h
// may be adopted again.
func (c *Client) Adopt(ctx context.Context, h Detached) (*Lease, error) {
	if h.secret == nil {
		return nil, wrap(ctx, "adopt", "", errNotDetached)
	}
	a, err := c.begin(ctx, "adopt", h.secret.key)
	if err != nil {
		return nil, err
	}
	defer c.keeper.leave()
	a.token = h.secret.token
	lease, err := a.adopt(h.secret)
	if err != nil {
		return nil, wrapUnlessLost(ctx, "adopt", a.key, err)
	}
	return lease, nil
}

func (a *acquisition) adopt(h *detached) (lease *Lease, err error) {
	o, k := &a.client.options, a.client.keeper
	switch {
	case o.fenced && h.fence == 0:
		return nil, errNoFences
	case !k.adopt(h.token):
		return nil, invalid("Detached: adopted already")
	}
	defer func() {
		if lease == nil {
			k.disown(h.token)
		}
	}()
	sent := time.Now()
	held, err := k.locker.Renew(a.ctx, h.key, h.token, o.ttl)
	a.asked = time.Now()
	l := newLease(a, Attempt{Fence: h.fence, Since: sent}, a.client.options.ttl)
	l.step = h.step
	switch {
	case err != nil:
		return nil, err
	case !held:
		return nil, l.lost(LossRemoved)
	case l.rest(a.asked) <= 0:
		return nil, errLate
	case !l.start():
		return nil, ErrClosed
	}
	return l, nil
}

// adopt reports whether the token is not that of a lease adopted before that
// still lives.
func (k *keeper) adopt(token string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.adopted[token]; ok {
		return false
	}
	k.adopted[token] = struct{}{}
	return true
}

func (k *keeper) disown(token string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.adopted, token)
}

// detachedPrefix starts the text of a Detached, and tells its version.
const detachedPrefix = "dlock1-"

var detachedText = base64.RawURLEncoding.Strict()

// MarshalText returns h as printable ASCII text, the secret included.
func (h Detached) MarshalText() ([]byte, error) {
	if h.secret == nil {
		return nil, fmt.Errorf("dlock: marshal: %w", errNotDetached)
	}
	return h.secret.text(), nil
}

func (h *detached) text() []byte {
	b := []byte{byte(h.step)}
	b = binary.AppendVarint(b, h.fence)
	b = binary.AppendUvarint(b, uint64(len(h.key)))
	b = append(b, h.key...)
	b = append(b, h.token...)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return detachedText.AppendEncode([]byte(detachedPrefix), b)
}

// UnmarshalText sets h to what MarshalText returned. The error matches
// [ErrInvalid] if text is anything else; it does not show the text, which may be
// most of a secret.
func (h *Detached) UnmarshalText(text []byte) error {
	parsed, reason := parseDetached(string(text))
	if reason != "" {
		return fmt.Errorf("dlock: unmarshal: %w", invalid("Detached of %d bytes: %s", len(text), reason))
	}
	h.secret = &parsed
	return nil
}

func parseDetached(text string) (h detached, reason string) {
	encoded, ok := strings.CutPrefix(text, detachedPrefix)
	if !ok {
		return h, "does not begin with " + detachedPrefix
	}
	b, err := detachedText.DecodeString(encoded)
	if err != nil {
		return h, err.Error()
	}
	if len(b) < 5 || crc32.ChecksumIEEE(b[:len(b)-4]) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return h, "cut off or changed"
	}
	step, b := int(b[0]), b[1:len(b)-4]
	fence, n := binary.Varint(b)
	size, m := binary.Uvarint(b[max(n, 0):])
	if n <= 0 || m <= 0 || size > uint64(len(b)-n-m) || step < 1 || step > maxSteps {
		return h, "malformed"
	}
	b = b[n+m:]
	h = detached{key: string(b[:size]), token: string(b[size:]), fence: fence, step: step}
	if h.key == "" || len(h.key) > maxKey || h.token == "" || string(h.text()) != text {
		return detached{}, "malformed"
	}
	return h, ""
}

// String returns key and fence, not the secret.
func (h Detached) String() string {
	if h.secret == nil {
		return "empty Detached"
	}
	return fmt.Sprintf("detached lease %q (fence %d)", h.secret.key, h.secret.fence)
}

// Format prints String, whatever the verb.
func (h Detached) Format(s fmt.State, _ rune) { io.WriteString(s, h.String()) }

// LogValue returns String, not the secret.
func (h Detached) LogValue() slog.Value { return slog.StringValue(h.String()) }
