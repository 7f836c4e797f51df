// Pictures writes the pictures of the documentation, each for a light and a dark page:
//
//	go generate ./docs/pictures
//
// The charts in this folder are drawn by benchmarks/peers.
package main

//go:generate go run .

import (
	"log"
	"os"
)

func main() {
	for name, content := range files() {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// files returns the pictures by their names.
func files() map[string]string {
	all := make(map[string]string)
	for theme, colours := range map[string]palette{"light": light, "dark": dark} {
		all["handover-"+theme+".svg"] = handover().svg(colours)
		all["fence-"+theme+".svg"] = fence().svg(colours)
	}
	return all
}

// handover shows how a release grants the lock to the first waiter.
func handover() *sequence {
	s := newSequence("process A", "Redis", "process B", "process C")
	const a, redis, b, c = 0, 1, 2, 3
	s.arrow(64, a, redis, "acquire")
	s.arrow(94, redis, a, "granted")
	s.arrow(124, b, redis, "acquire")
	s.box(152, redis, "queue: B", plain)
	s.arrow(184, c, redis, "acquire")
	s.box(212, redis, "queue: B, C", plain)
	s.arrow(252, a, redis, "release")
	s.box(280, redis, "B holds; queue: C", good)
	s.arrow(312, redis, b, "granted")
	s.bar(102, 252, a, "A holds the lock")
	s.wait(124, 320, b, "B waits")
	s.bar(320, 384, b, "B holds the lock")
	s.wait(184, 384, c, "C waits")
	s.caption("From the release to the next holder: one round trip, however many wait.")
	return s
}

// fence shows how a database refuses the late write of a holder that was stopped.
func fence() *sequence {
	s := newSequence("process A", "Redis", "process B", "database")
	const a, redis, b, database = 0, 1, 2, 3
	s.arrow(64, a, redis, "acquire")
	s.arrow(94, redis, a, "granted, fence 8")
	s.bar(102, 140, a, "A holds the lock")
	s.wait(140, 338, a, "A is stopped")
	s.box(162, redis, "the lease of A ends", plain)
	s.arrow(198, b, redis, "acquire")
	s.arrow(228, redis, b, "granted, fence 16")
	s.bar(236, 384, b, "B holds the lock")
	s.arrow(262, b, database, "write, fence 16")
	s.box(290, database, "largest fence: 16", good)
	s.arrow(338, a, database, "write, fence 8")
	s.box(366, database, "refused: 8 < 16", bad)
	s.caption("A was stopped for longer than its lease, and cannot know it. The database can.")
	return s
}
