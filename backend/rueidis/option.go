package rueidis

import (
	"time"

	"github.com/dlock-go/dlock/backend/rediscore"
)

// An Option configures a Locker. It is a [rediscore.Option].
type Option = rediscore.Option

// WithPrefix is [rediscore.WithPrefix]: it sets the prefix of all Redis keys and channels.
func WithPrefix(prefix string) Option { return rediscore.WithPrefix(prefix) }

// WithQueue is [rediscore.WithQueue]: with false, waiters poll and do not queue. The default is
// true.
func WithQueue(on bool) Option { return rediscore.WithQueue(on) }

// WithCounterBySlot is [rediscore.WithCounterBySlot]: there is a fence counter for each hash slot, as in a cluster.
func WithCounterBySlot(on bool) Option { return rediscore.WithCounterBySlot(on) }

// WithInboxError is [rediscore.WithInboxError]: f is called with the reason why waiters get no
// messages.
func WithInboxError(f func(error)) Option { return rediscore.WithInboxError(f) }

// WithReplicas is [rediscore.WithReplicas]: grants and renewals count only when n replicas have
// them.
func WithReplicas(n int, timeout time.Duration) Option { return rediscore.WithReplicas(n, timeout) }
