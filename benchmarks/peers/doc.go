// Peers measures dlock beside other lock libraries for Redis, and writes the tables and charts of
// docs/performance.md. It is not released, and runs in a clone of the repository:
//
//	go -C benchmarks/peers run . -orders
//	go -C benchmarks/peers run .
//	go -C benchmarks/peers run . -majority
//	go -C benchmarks/peers run . -sets
//
// The first run measures locks that nobody else wants, and takes two minutes. The second measures locks that several want,
// the third locks on several servers; they take 5 to 10 minutes. The fourth prints
// a table of sets of locks, and takes a minute. A run needs Linux, and redis-server on PATH (or at
// DLOCK_REDIS). Each but the fourth writes what it has measured to orders.json, data.json or majority.json, then the tables, and
// prints them. With -draw it measures nothing, and only writes the tables and the charts again.
//
// All contestants take turns: each turn measures one of them in one scenario, in processes of
// its own, and the rounds go through all contestants. So a slow minute of the machine hits all.
// A process is this program, which executes itself: see worker.go.
package main
