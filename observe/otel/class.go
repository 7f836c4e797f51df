package otel

import (
	"strings"
	"sync"
)

const maxClasses = 100

// classes are those that keys had so far.
type classes struct {
	of func(key string) string // nil: all keys have one class

	mu    sync.Mutex
	known map[string]struct{}
}

// class returns the class of a key. There are at most maxClasses, and "other".
func (c *classes) class(key string) string {
	if c.of == nil {
		return "all"
	}
	class := valid(c.of(key))
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.known[class]; !known {
		if len(c.known) >= maxClasses {
			return "other"
		}
		c.known[strings.Clone(class)] = struct{}{} // it may be part of a long key
	}
	return class
}

// valid returns s as UTF-8: exporters refuse all else, with everything that is exported beside it.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
