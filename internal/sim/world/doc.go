// Package systems tests whole systems in virtual time: several Clients work with the servers of
// package sim, while faults happen, and the whole is judged.
//
// A seed draws a [plan]: the servers, the Clients, their jobs and the faults. A plan takes the same course
// each time it is run. A plan that fails is shrunk to a few jobs and faults, and its history is drawn.
//
//	go test ./internal/sim/systems                                 some seeds
//	DLOCK_SIM_SYSTEMS=2000 go test ./internal/sim/systems          seeds 1 to 2000
//	DLOCK_SIM_TIME=1h go test -timeout 0 ./internal/sim/systems    seeds that nobody has tried, for an hour
//	DLOCK_SIM_SEED=7 go test ./internal/sim/systems                the seed that a failure has printed
//	DLOCK_SIM_PLANTED=1 go test ./internal/sim/systems             faults put into the code, which must be found
//
// The package has only tests.
package world
