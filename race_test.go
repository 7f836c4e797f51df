//go:build race

package dlock_test

// slower is how many times slower the race detector makes large tests, which so are
// that much smaller.
const slower = 10
