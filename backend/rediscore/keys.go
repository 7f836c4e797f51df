package rediscore

import (
	"strings"
	"sync"
)

// What is stored beside a lock is named prefix{tag}… if the prefix has no
// opening brace, or {tag}prefix…, with the tag of the lock's slot. So it is in
// the lock's slot. There is one counter of fences for each slot, not for each lock,
// and a queue only where somebody waits.
const (
	companionMark = "dlock1:"
	fenceSuffix   = companionMark + "fence"
	queueSuffix   = companionMark + "queue:"   // and the key
	waitersSuffix = companionMark + "waiters:" // and the key
	inboxSuffix   = companionMark + "inbox:"   // and a name made up by the Locker
)

// companion returns the name of what is stored beside the locks of a slot.
func companion(prefix string, slot int, suffix string) string {
	tag := "{" + tags()[slot] + "}"
	if strings.Contains(prefix, "{") {
		return tag + prefix + suffix
	}
	return prefix + tag + suffix
}

// lockKeys are the keys of the scripts for one lock: the lock, the counter of its
// slot, the queue and the waiters. They are boxed here, once, for libraries that
// want their arguments so.
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

// keys remembers the names of locks that were used lately.
type keys struct {
	mu    sync.RWMutex
	names map[string]*lockKeys
}

// maxNames is of how many locks the names are remembered.
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
