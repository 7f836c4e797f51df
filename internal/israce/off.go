//go:build !race

package israce

const (
	Enabled = false
	Slower  = 1
)
