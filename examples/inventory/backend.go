package main

import (
	"maps"
	"slices"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// A backend makes one Locker for each worker, all of the same locks. hangUp
// closes what they were made from.
type backend func(config) (lockers []dlock.Locker, hangUp func() error, err error)

// backends are the values of -backend.
var backends = map[string]backend{
	"memory": inMemory,
}

func backendNames() []string { return slices.Sorted(maps.Keys(backends)) }

func inMemory(cfg config) (lockers []dlock.Locker, hangUp func() error, err error) {
	lockers = slices.Repeat([]dlock.Locker{memory.New()}, cfg.workers)
	return lockers, func() error { return nil }, nil
}
