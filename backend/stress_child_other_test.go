//go:build !linux

package backend_test

// Processes are stopped and killed on Linux only.
var childKinds []string

type order struct {
	Addr string
	Keys []string
	Seed uint64
}

func (c *chaos) raise(string, int, order) error { return nil }
