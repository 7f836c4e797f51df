package redigo

import "github.com/dlock-go/dlock/backend/rediscore"

// An Option changes where or how a Locker keeps leases.
type Option = rediscore.Option

// WithPrefix is [rediscore.WithPrefix]: all keys, and all else that is stored, are put under
// a prefix.
func WithPrefix(prefix string) Option { return rediscore.WithPrefix(prefix) }

// WithQueue is [rediscore.WithQueue]: WithQueue(false) makes waiters poll instead of
// standing in the queue. The default is true.
func WithQueue(on bool) Option { return rediscore.WithQueue(on) }

// WithInboxError is [rediscore.WithInboxError]: f is called once with the reason if waiters
// cannot be told of their grants, and have to ask.
func WithInboxError(f func(error)) Option { return rediscore.WithInboxError(f) }
