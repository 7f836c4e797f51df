// Package benchmarks compares the backends of dlock with each other and with the
// least that each of them could cost.
//
//	go test -bench . ./benchmarks
//
// The names of the benchmarks hold the backend as a key and a value, so that
// benchstat can put them side by side:
//
//	go test -bench . -count 10 ./benchmarks | benchstat -col /backend -
package benchmarks
