package faultproxy

import (
	"math/rand/v2"
	"time"
)

// A Pace says how slow a network is in one direction. A zero field has no effect.
type Pace struct {
	Latency        time.Duration // of everything
	Jitter         time.Duration // a random extra latency, up to this; the order is kept
	BytesPerSecond int           // on each connection
}

func (p Pace) delay() time.Duration {
	if p.Jitter <= 0 {
		return p.Latency
	}
	return p.Latency + rand.N(p.Jitter)
}

// piece returns how many of n bytes to write at once, and how long to wait then.
func (p Pace) piece(n int) (int, time.Duration) {
	if p.BytesPerSecond <= 0 {
		return n, 0
	}
	const perSecond = 100
	n = min(n, max(1, p.BytesPerSecond/perSecond))
	return n, time.Duration(n) * time.Second / time.Duration(p.BytesPerSecond)
}
