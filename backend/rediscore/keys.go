package rediscore

import (
	"slices"
	"strings"

	"github.com/dlock-go/dlock/backend/internal/hashslot"
)

// The companions of a lock are what is stored beside it. Their names begin with prefix{tag},
// or with {tag}prefix if the prefix has an opening brace. The tag puts the queue and the waiters into the lock's
// slot; they are there only while a waiter needs them. In a cluster, it puts the fence counter and the marker of votes there,
// too: there is one for all locks of a slot. Elsewhere there is one counter for the prefix, and one marker.
const (
	companionMark = "dlock1:"
	fenceSuffix   = companionMark + "fence"
	queueSuffix   = companionMark + "queue:"   // followed by the key
	waitersSuffix = companionMark + "waiters:" // followed by the key
	birthSuffix   = companionMark + "birth"
	inboxSuffix   = companionMark + "inbox:" // followed by a random name
)

// companion returns the name of a companion of the locks in a slot.
func companion(prefix string, slot int, suffix string) string {
	before, behind := around(prefix)
	return before + "{" + hashslot.Tags()[slot] + "}" + behind + suffix
}

// around returns what stands before a tag, and what behind it: one of them is the prefix.
func around(prefix string) (before, behind string) {
	if strings.Contains(prefix, "{") {
		return "", prefix
	}
	return prefix, ""
}

// QueuePattern is a pattern for SCAN. The names of all queues match it.
const QueuePattern = "*" + queueSuffix + "*"

// ParseQueue returns the prefix and the key of the lock whose queue has this name.
func ParseQueue(name string) (prefix, key string, ok bool) {
	beside, key, marked := strings.Cut(name, queueSuffix)
	prefix, rest, tagged := strings.Cut(beside, "{")
	if strings.Contains(rest, "{") { // {tag}prefix
		_, prefix, tagged = strings.Cut(rest, "}")
	}
	return prefix, key, marked && tagged
}

// commonSlot is the slot of the counter that the locks of a prefix share outside a cluster. A lock that would be in the same
// slot has its counter in the next one. So no cluster accepts a lock with a common counter: the keys of a script would be
// in two slots.
const commonSlot = 0

// lockKeys are the keys of the scripts for one lock: the lock, the fence counter,
// the queue, the waiters and the marker.
type lockKeys struct {
	slot   uint16
	bySlot bool
	texts  [5]string
	set    []string // of a call for a set, whose first lock this is: see keysOfSet
}

// newLockKeys returns the keys of a lock, with the counter and the marker of the lock's slot or of the prefix. The names of
// the companions are made as one text, of which each is a part: most locks have a name that is used
// once, so these are made for each call.
func newLockKeys(prefix, key string, bySlot bool) *lockKeys {
	name := prefix + key
	n := &lockKeys{slot: uint16(Slot(name)), bySlot: bySlot}
	before, behind := around(prefix)
	tag, counter := hashslot.Tags()[n.slot], n.slot
	marker := [...]string{before, "{", tag, "}", behind}
	if !bySlot {
		marker = [len(marker)]string{prefix}
		if counter = commonSlot; n.slot == commonSlot {
			counter++
		}
	}
	beside := len(prefix) + len("{}") + len(tag)
	all := strings.Join([]string{
		before, "{", hashslot.Tags()[counter], "}", behind, fenceSuffix,
		before, "{", tag, "}", behind, queueSuffix, key,
		before, "{", tag, "}", behind, waitersSuffix, key,
		marker[0], marker[1], marker[2], marker[3], marker[4], birthSuffix,
	}, "")
	cut := func(length int) (text string) {
		text, all = all[:length], all[length:]
		return text
	}
	n.texts = [...]string{
		name,
		cut(beside + len(fenceSuffix)),
		cut(beside + len(queueSuffix) + len(key)),
		cut(beside + len(waitersSuffix) + len(key)),
		all,
	}
	return n
}

// keysOf returns the keys of a lock.
func (l *Locker) keysOf(key string) *lockKeys {
	return newLockKeys(l.prefix, key, l.bySlot.Load() || l.conn.cluster())
}

// keysOfSet returns the keys of several locks: the first four of each, one lock after the other. It returns nil if they have not
// all the same counter: a script sets one, and in a cluster all of its keys are in one slot.
func (l *Locker) keysOfSet(names []string) *lockKeys {
	first := l.keysOf(names[0])
	for _, name := range names {
		keys := newLockKeys(l.prefix, name, first.bySlot).texts[:setStride]
		if keys[1] != first.texts[1] {
			return nil
		}
		first.set = append(first.set, keys...)
	}
	return first
}

const setStride = 4

// keysNow returns the keys that a call has now, or nil if its locks have not all the same counter any more.
func (l *Locker) keysNow(call Call) *lockKeys {
	if call.Script.Keys > 0 {
		return l.keysOf(l.nameOf(call))
	}
	var names []string
	for lock := range slices.Chunk(call.Keys(), setStride) {
		names = append(names, lock[0][len(l.prefix):])
	}
	return l.keysOfSet(names)
}

// Slot returns the Redis Cluster hash slot of a key: the CRC16 of the key, or of
// its hash tag if it has one, modulo 16,384. See "Redis cluster specification",
// keys distribution model.
func Slot(key string) int { return hashslot.Of(key) }
