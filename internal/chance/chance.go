// Package chance is the only source of what the library draws at random: tokens, names and pauses.
//
// A draw comes from [crypto/rand] or [math/rand/v2]. While [Seed] is in force, each draw follows from
// the seed and from the draws before it, so a test can run again what it ran before.
package chance

import (
	crypto "crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// seeded replaces the random sources. It is nil but in a simulation.
var seeded atomic.Pointer[source]

type source struct {
	mu sync.Mutex
	*rand.Rand
}

// Seed makes all draws of this process follow from seed, until end is called. It is for tests: tokens
// can be guessed then.
//
// One seed is in force at a time, so a test that calls Seed must not run beside another test of its
// process: neither may call t.Parallel. Seed panics while another seed is in force.
func Seed(seed uint64) (end func()) {
	s := &source{Rand: rand.New(rand.NewPCG(seed, 0))}
	if !seeded.CompareAndSwap(nil, s) {
		panic("chance: another seed is in force")
	}
	return func() { seeded.CompareAndSwap(s, nil) }
}

// N returns a duration from 0 up to n, but not n. It panics if n is not positive.
func N(n time.Duration) time.Duration {
	s := seeded.Load()
	if s == nil {
		return rand.N(n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.Int64N(int64(n)))
}

// Bits returns 128 bits that nobody can guess.
func Bits() (b [16]byte) {
	s := seeded.Load()
	if s == nil {
		crypto.Read(b[:]) // never fails
		return b
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	binary.BigEndian.PutUint64(b[:8], s.Uint64())
	binary.BigEndian.PutUint64(b[8:], s.Uint64())
	return b
}

// Text returns [Bits] as 26 letters and digits.
func Text() string {
	b := Bits()
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:])
}
