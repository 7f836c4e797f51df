package rediscore

import (
	"math/rand/v2"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"
)

// keySlots asks the server for the slots of names.
func (c *wireConn) keySlots(t testing.TB, names ...string) []int {
	t.Helper()
	for _, name := range names {
		require.NoError(t, c.redis.Send("CLUSTER", "KEYSLOT", name))
	}
	slots, err := redis.Ints(c.redis.Do(""))
	require.NoError(t, err)
	return slots
}

// requireSameSlot fails unless Slot and the server agree on the slot of the lock,
// and what is stored beside the lock is in it too.
func requireSameSlot(t testing.TB, c *wireConn, prefix, key string) {
	t.Helper()
	lock := prefix + key
	companion := New(c, WithPrefix(prefix)).companion(lock, fenceSuffix)
	got := c.keySlots(t, lock, companion)
	require.Equal(t, got[0], Slot(lock), "Slot(%q)", lock)
	require.Equal(t, got[0], Slot(companion), "Slot(%q), beside %q", companion, lock)
	require.Equal(t, got[0], got[1], "slot of %q, beside %q", companion, lock)
	require.NotEqual(t, lock, companion)
}

// FuzzSlot compares the slots of locks, and of what is stored beside them, with
// those that a real server gives them. Run it with -fuzzminimizetime=10x: coverage
// varies with the network, and without a limit most of the time goes into attempts to
// minimize inputs.
func FuzzSlot(f *testing.F) {
	for _, n := range names {
		f.Add(n.prefix, n.key)
	}
	for _, s := range []string{"{", "}", "{}", "}{", "{{", "}}", "{{a}}", "{}{a}", "a{b", "a}b", "{\x00}", "{ }", "{é}", "\xff\xfe"} {
		f.Add(s, s)
		f.Add("", s)
		f.Add(s, "a")
	}
	_, c := wire(f, "", "--cluster-enabled", "yes")
	f.Fuzz(func(t *testing.T, prefix, key string) { requireSameSlot(t, c, prefix, key) })
}

func TestSlotOfRandomNames(t *testing.T) {
	_, c := wire(t, "", "--cluster-enabled", "yes")
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		requireSameSlot(t, c, randomName(r, 8), "x"+randomName(r, 40))
	}
}

// randomName has many braces.
func randomName(r *rand.Rand, limit int) string {
	name := make([]byte, r.IntN(limit))
	for i := range name {
		switch r.IntN(5) {
		case 0:
			name[i] = '{'
		case 1:
			name[i] = '}'
		default:
			name[i] = byte(r.IntN(256))
		}
	}
	return string(name)
}
