//go:build !linux

package stress

// Child processes are started on Linux only.
var childKinds []string

type order struct {
	Addr string
	Keys []string
	Seed uint64
}

func (c *chaos) runChildren(string, int, order) error { return nil }
