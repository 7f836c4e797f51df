//go:build !race

package dlock_test

const slower = 1
