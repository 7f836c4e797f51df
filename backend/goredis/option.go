package goredis

import "github.com/dlock-go/dlock/backend/rediscore"

// An Option changes where or how a Locker keeps leases.
type Option = rediscore.Option

// WithPrefix is [rediscore.WithPrefix]: everything that is stored is put under a prefix.
func WithPrefix(prefix string) Option { return rediscore.WithPrefix(prefix) }

// WithQueue is [rediscore.WithQueue]: WithQueue(false) makes waiters poll instead of
// queueing. The default is true.
func WithQueue(on bool) Option { return rediscore.WithQueue(on) }

// WithInboxError is [rediscore.WithInboxError]: f is called with the reason if waiters get no
// messages, and have to poll.
func WithInboxError(f func(error)) Option { return rediscore.WithInboxError(f) }
