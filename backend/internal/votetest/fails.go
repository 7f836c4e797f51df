package votetest

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
)

// Fails calls check in a bubble, and reports whether it fails. The test does not fail because of it.
func Fails(t *testing.T, check func(*testing.T, require.TestingT)) bool {
	var o outcome
	bubble.Test(t, func(t *testing.T) {
		var all sync.WaitGroup
		all.Go(func() { check(t, &o) })
		all.Wait()
	})
	return o.failed
}

// An outcome is that of a check.
type outcome struct{ failed bool }

// Errorf implements [require.TestingT].
func (o *outcome) Errorf(string, ...any) { o.failed = true }

// FailNow implements [require.TestingT]. It ends the goroutine, which has nothing else to do.
func (o *outcome) FailNow() { runtime.Goexit() }
