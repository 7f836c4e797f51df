// Package world tests whole Clients on the servers of package sim, in virtual time: a world is some servers, the
// processes that use them, and what is on its way between them. Whatever happens from outside happens alone, and a
// driver decides when. There are two drivers:
//
//   - A seed draws a [plan]: the servers, the Clients, their jobs, what becomes of each message, and other faults. A plan that
//     fails is shrunk to a few jobs and faults, and its history is drawn.
//   - A search runs every small [schedule]: every order of events that differs in few places from the usual one.
//
// What must hold is a [property]. To show that the properties find something, each [row] plants a fault in the code that
// ships: it takes a rule of docs/handover.md out, for example.
//
//	go test ./internal/sim/world                                    some seeds, most schedules
//	go test ./internal/sim/world -run Systems -systems=2000         seeds 1 to 2000
//	go test ./internal/sim/world -run Systems -for=1h -timeout=0    seeds that nobody has tried, for an hour
//	go test ./internal/sim/world -run Systems -from=7 -systems=1    the seed that a failure has printed, and all that happens
//	go test ./internal/sim/world -run Schedules -large              more schedules
//	go test ./internal/sim/world -run Rows -rows=known              each planted fault, by a seed or a schedule that is
//	                                                                known to find it; fresh finds others, record notes them
//
// A seed repeats its run, byte by byte, when the program is compiled with a Go runtime that does nothing at random, or by
// real time: see exact, and TestExact, which -rows runs. With the usual runtime 128 of 150 did.
//
// The package has only tests.
package world
