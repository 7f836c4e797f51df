// Peers measures dlock beside other lock libraries for Redis, and writes docs/performance.md and
// its charts. It is not released, and runs in a clone of the repository:
//
//	go -C benchmarks/peers run .
//	go -C benchmarks/peers run . -majority
//
// The second run measures redlock on several servers, and writes the last chapter of the page. A
// run takes 5 to 10 minutes, needs redis-server on PATH (or at DLOCK_REDIS) and runs on
// Unix. It writes what it has measured to data.json or majority.json. With -draw it measures
// nothing, and only writes the page and the charts again.
//
// All contestants take turns: each turn measures one of them in one scenario, in processes of
// its own, and the rounds go through all contestants. So a slow minute of the machine hits all.
// A process is this program, which executes itself: see worker.go.
package main
