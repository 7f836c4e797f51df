// Package peers measures dlock beside other lock libraries for Redis, and writes the tables of docs/performance.md. It is not
// released, and runs in a clone of the repository, on Linux with redis-server on PATH:
//
//	DLOCK_REDIS=1 go test -C benchmarks/peers -timeout 1h -run TestMeasure -measure orders
//
// "orders" measures locks that nobody else wants, and takes two minutes. "several" measures locks that several want, and
// "majority" locks on several servers; they take 5 to 10 minutes.
// Each writes what it has measured to a file of its name, then the tables, and prints them.
//
// All contestants take turns: each turn measures one of them in one scenario, in processes of
// its own, and the rounds go through all contestants. So a slow minute of the machine hits all.
// A process is this program, which executes itself: see worker.go.
package peers
