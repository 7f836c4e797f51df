//go:build !linux

package stress

import (
	"testing"
	"time"
)

// Child processes are started on Linux only.
var childKinds []string

type order struct {
	Addrs, Keys []string
	TTLs        []time.Duration
	Seed        uint64
}

func (c *chaos) startChildren(*testing.T, order) (await func()) { return func() {} }
