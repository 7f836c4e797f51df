//go:build race

package otel_test

// slower is how many times smaller large tests are with the race detector.
const slower = 10
