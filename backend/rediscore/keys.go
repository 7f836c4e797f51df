package rediscore

import (
	"strings"
	"sync"
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
	tag := "{" + tags()[slot] + "}"
	if strings.Contains(prefix, "{") {
		return tag + prefix + suffix
	}
	return prefix + tag + suffix
}

// lockKeys are the keys of the scripts for one lock: the lock, the fence counter of its slot,
// the queue, the waiters and the marker. They are boxed once, for libraries that take []any.
type lockKeys struct {
	slot  int
	texts [5]string
	boxed [5]any
}

func newLockKeys(prefix, key string, cluster bool) *lockKeys {
	n := &lockKeys{slot: Slot(prefix + key)}
	n.texts = [...]string{
		prefix + key,
		companion(prefix, n.slot, fenceSuffix),
		companion(prefix, n.slot, queueSuffix+key),
		companion(prefix, n.slot, waitersSuffix+key),
		prefix + birthSuffix,
	}
	if cluster {
		n.texts[4] = companion(prefix, n.slot, birthSuffix)
	}
	for i, text := range n.texts {
		n.boxed[i] = text
	}
	return n
}

// A keyCache has the keys of locks that were used lately.
type keyCache struct {
	mu    sync.RWMutex
	names map[string]*lockKeys
}

// maxNames is the number of locks in the cache. When it is full, it is emptied.
const maxNames = 1024

func (k *keyCache) of(prefix, key string, conn Conn) *lockKeys {
	k.mu.RLock()
	n := k.names[key]
	k.mu.RUnlock()
	if n != nil {
		return n
	}
	n = newLockKeys(prefix, key, conn.Cluster())
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.names == nil || len(k.names) >= maxNames {
		k.names = make(map[string]*lockKeys)
	}
	k.names[key] = n
	return n
}
