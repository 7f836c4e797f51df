//go:build race

// Package israce says whether a test runs with the race detector.
package israce

const (
	Enabled = true
	Slower  = 10 // how many times smaller large tests are with the race detector
)
