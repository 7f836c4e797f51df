package rediscore

import (
	"strings"
	"sync"
)

// The companions of a lock are what is stored beside it. Their names begin with prefix{tag},
// or with {tag}prefix if the prefix has an opening brace. The tag puts them into the lock's
// slot. There is one fence counter for each slot, not for each lock, and there is a queue only
// while a waiter needs it.
const (
	companionMark = "dlock1:"
	fenceSuffix   = companionMark + "fence"
	queueSuffix   = companionMark + "queue:"   // followed by the key
	waitersSuffix = companionMark + "waiters:" // followed by the key
	inboxSuffix   = companionMark + "inbox:"   // followed by a random name of the Locker's
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
// the queue and the waiters. They are boxed once, for libraries that take []any.
type lockKeys struct {
	slot  int
	texts [4]string
	boxed [4]any
}

func newLockKeys(prefix, key string) *lockKeys {
	n := &lockKeys{slot: Slot(prefix + key)}
	n.texts = [...]string{
		prefix + key,
		companion(prefix, n.slot, fenceSuffix),
		companion(prefix, n.slot, queueSuffix+key),
		companion(prefix, n.slot, waitersSuffix+key),
	}
	for i, text := range n.texts {
		n.boxed[i] = text
	}
	return n
}

// keys caches the keys of locks that were used lately.
type keys struct {
	mu    sync.RWMutex
	names map[string]*lockKeys
}

// maxNames is the number of locks in the cache. When it is full, it is emptied.
const maxNames = 1024

func (k *keys) of(prefix, key string) *lockKeys {
	k.mu.RLock()
	n := k.names[key]
	k.mu.RUnlock()
	if n != nil {
		return n
	}
	n = newLockKeys(prefix, key)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.names == nil || len(k.names) >= maxNames {
		k.names = make(map[string]*lockKeys)
	}
	k.names[key] = n
	return n
}
