//go:build !race

package otel_test

const slower = 1
