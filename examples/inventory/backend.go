package main

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// A driver is a way to the locks: a client library, or memory. dial returns a
// Locker, and what closes that which it was made from. It may connect, but need
// not.
type driver struct {
	name string
	dial func(config) (locker dlock.Locker, hangUp func() error, err error)
}

var (
	viaGoRedis = driver{"goredis", dialGoRedis}
	viaRueidis = driver{"rueidis", dialRueidis}
	viaRedigo  = driver{"redigo", dialRedigo}
)

const (
	inMemory    = "memory"
	overServers = "redlock"
)

// backends are the values of -backend. The workers take the drivers of a backend
// in turn.
var backends = map[string][]driver{
	inMemory:    {{"memory", dialMemory}},
	"goredis":   {viaGoRedis},
	"rueidis":   {viaRueidis},
	"redigo":    {viaRedigo},
	"mixed":     {viaGoRedis, viaRueidis, viaRedigo},
	overServers: {{"redlock", dialRedlock}},
}

func backendNames() []string { return slices.Sorted(maps.Keys(backends)) }

// Of all clients of a server.
const (
	prefix  = "dlock-inventory:" // of what is stored, since others may use the server
	timeout = 3 * time.Second    // to connect, and of one command
)

func dialMemory(config) (dlock.Locker, func() error, error) {
	return memory.New(), func() error { return nil }, nil
}

// dial calls all drivers of the backend. It returns one Locker for each worker,
// and what closes them all.
func dial(cfg config) (lockers []dlock.Locker, hangUp func() error, err error) {
	var opened []dlock.Locker
	var hangUps []func() error
	hangUp = func() (err error) {
		for _, hangUp := range hangUps {
			err = errors.Join(err, hangUp())
		}
		return err
	}
	for _, d := range backends[cfg.backend] {
		locker, hangUpOne, err := d.dial(cfg)
		if err != nil {
			_ = hangUp() // err is the reason
			return nil, nil, err
		}
		opened, hangUps = append(opened, locker), append(hangUps, hangUpOne)
	}
	for i := range cfg.workers {
		lockers = append(lockers, opened[i%len(opened)])
	}
	return lockers, hangUp, nil
}
