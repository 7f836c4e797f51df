// Package benchmarks compares the backends of dlock with each other. The module in peers compares them with the least that
// each of them could cost, and with other libraries.
//
//	DLOCK_REDIS=1 go test -bench . ./benchmarks
//
// The names of the benchmarks hold the backend as a key and a value, so that benchstat can put them side by side:
//
//	DLOCK_REDIS=1 go test -bench . -count 10 ./benchmarks | benchstat -col /backend -
//
// The 99th percentiles of BenchmarkHandover are about milliseconds, and so first of all about the machine: a CPU of a
// virtual machine that has gone idle may take some to come back, and every other process may come before. On Linux, as
// root, the CPUs are kept awake by something that gives way to everything else, and the benchmark and its server come
// before the rest:
//
//	for i in $(seq $(nproc)); do chrt --idle 0 sh -c 'while :; do :; done' & done
//	go test -c -o bench ./benchmarks
//	DLOCK_REDIS=1 chrt --rr 10 ./bench -test.run '^$' -test.bench Handover -test.benchtime 100x
//	kill $(jobs -p)
package benchmarks
