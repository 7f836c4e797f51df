package rediscore

import (
	"strings"

	"github.com/dlock-go/dlock/backend/internal/hashslot"
)

// The companions of a lock are what is stored beside it. Their names begin with prefix{tag},
// or with {tag}prefix if the prefix has an opening brace. The tag puts them into the lock's
// slot. There is one fence counter for each slot, not for each lock, and there is a queue only
// while a waiter needs it. Outside a cluster, the marker of votes has no tag: there is only one. A server that was
// promoted has another in each slot (fence.lua).
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
	tag := "{" + hashslot.Tags()[slot] + "}"
	if strings.Contains(prefix, "{") {
		return tag + prefix + suffix
	}
	return prefix + tag + suffix
}

// QueuePattern is a pattern for SCAN. The names of all queues match it.
const QueuePattern = "*" + queueSuffix + "*"

// ParseQueue returns the prefix and the key of the lock whose queue has a name.
func ParseQueue(name string) (prefix, key string, ok bool) {
	beside, key, marked := strings.Cut(name, queueSuffix)
	prefix, rest, tagged := strings.Cut(beside, "{")
	if strings.Contains(rest, "{") { // {tag}prefix
		_, prefix, tagged = strings.Cut(rest, "}")
	}
	return prefix, key, marked && tagged
}

// lockKeys are the keys of the scripts for one lock: the lock, the fence counter of its slot,
// the queue, the waiters and the marker.
type lockKeys struct {
	slot  int
	texts [5]string
}

// newLockKeys makes the names of the companions as one text, of which each is a part: most locks have a name that is used
// once, so these are made for each call.
func newLockKeys(prefix, key string, cluster bool) *lockKeys {
	name := prefix + key
	n := &lockKeys{slot: Slot(name)}
	slotted, marker := companion(prefix, n.slot, ""), prefix
	if cluster {
		marker = slotted
	}
	all := slotted + fenceSuffix + slotted + queueSuffix + key + slotted + waitersSuffix + key + marker + birthSuffix
	cut := func(length int) (text string) {
		text, all = all[:length], all[length:]
		return text
	}
	n.texts = [...]string{
		name,
		cut(len(slotted) + len(fenceSuffix)),
		cut(len(slotted) + len(queueSuffix) + len(key)),
		cut(len(slotted) + len(waitersSuffix) + len(key)),
		all,
	}
	return n
}

// keysOf returns the keys of a lock.
func (l *Locker) keysOf(key string) *lockKeys {
	return newLockKeys(l.prefix, key, l.conn.cluster())
}

// Slot returns the Redis Cluster hash slot of a key: the CRC16 of the key, or of
// its hash tag if it has one, modulo 16,384. See "Redis cluster specification",
// keys distribution model.
func Slot(key string) int { return hashslot.Of(key) }
