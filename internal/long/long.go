// Package long says which tests are to do more than in a check, and how much. The variable DLOCK_LONG names them, with
// spaces between:
//
//	DLOCK_LONG="adapters stress=10m" go test ./backend/...
package long

import (
	"fmt"
	"os"
	"strings"
)

// parts are what DLOCK_LONG may name. CONTRIBUTING.md has the same list.
var parts = map[string]string{
	"adapters":  "what package rediscore decides is tested with each library, and each way in which servers fail",
	"topology":  "2m: load on Sentinel and on a cluster, and the suite on both",
	"majority":  "2m: the suite and load on majorities of servers",
	"stress":    "10m: all ways to use locks on one server, under faults",
	"fences":    "60s: races in databases",
	"outages":   "all, or a time such as 1h: outages of a store while leases are renewed",
	"run":       "170: rounds of faults under dlock run",
	"sequences": "10000: on the simulator and a server",
}

// Of returns the value of a part, "1" if it is named without one, and "" if it is not named.
func Of(part string) string {
	if parts[part] == "" {
		panic("long: there is no part " + part)
	}
	found := ""
	for _, word := range strings.Fields(os.Getenv("DLOCK_LONG")) {
		name, value, ok := strings.Cut(word, "=")
		if parts[name] == "" {
			panic(fmt.Sprintf("DLOCK_LONG=%q: there is no part %q", os.Getenv("DLOCK_LONG"), name))
		}
		if !ok {
			value = "1"
		}
		if name == part {
			found = value
		}
	}
	return found
}
