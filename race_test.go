//go:build race

package dlock_test

// slower is how many times smaller large tests are with the race detector.
const slower = 10
