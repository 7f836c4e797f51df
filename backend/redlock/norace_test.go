//go:build !race

package redlock_test

const race = false
