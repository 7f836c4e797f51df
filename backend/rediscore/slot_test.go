package rediscore

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"
)

// keySlots returns the slots of names according to the server.
func (c *wireConn) keySlots(t testing.TB, names ...string) []int {
	t.Helper()
	for _, name := range names {
		require.NoError(t, c.redis.Send("CLUSTER", "KEYSLOT", name))
	}
	slots, err := redis.Ints(c.redis.Do(""))
	require.NoError(t, err)
	return slots
}

// requireSameSlot fails unless Slot and the server agree on the slot of the lock, and the lock's
// companions are in that slot.
func requireSameSlot(t testing.TB, c *wireConn, prefix, key string) {
	t.Helper()
	keys := newLockKeys(prefix, key, true)
	all := append(keys.texts[:], companion(prefix, keys.slot, inboxSuffix+"x"))
	for i, slot := range c.keySlots(t, all...) {
		require.Equal(t, slot, keys.slot, "slot of %q, for lock %q", all[i], prefix+key)
		require.Equal(t, slot, Slot(all[i]), "Slot(%q), for lock %q", all[i], prefix+key)
	}
	slices.Sort(all)
	require.Len(t, slices.Compact(all), 6, "names for %q", prefix+key)
}

// FuzzSlot compares the slots of locks and their companions with those of a real server. Run it
// with -fuzzminimizetime=10x: coverage varies with the network, so without a limit most of the time
// goes into minimizing inputs.
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

// randomName returns a name with many braces.
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

func TestEverySlotHasATag(t *testing.T) {
	seen := make(map[string]bool)
	for slot, tag := range tags() {
		require.Len(t, tag, tagLength, "slot %d", slot)
		require.Equal(t, slot, Slot(tag))
		require.Equal(t, slot, Slot("any prefix{"+tag+"}any suffix"))
		require.False(t, seen[tag])
		seen[tag] = true
	}
}
