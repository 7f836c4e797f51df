# The commands of a contributor. CONTRIBUTING.md says when to use which.
.PHONY: short test race topology majority lint release check

short: ## the quick tests
	go test -short ./...

test: ## the tests, with a Redis server if there is one
	go test ./...

race: ## the tests with the race detector; each needs a Redis server
	DLOCK_TEST_REQUIRE_SERVER=1 go test -race -count=1 -p 4 ./...

topology: ## Sentinel and a cluster, with failovers
	DLOCK_TOPOLOGY=2m go test -race -count=1 -v -timeout 0 -run TestTopology ./backend/...

majority: ## independent servers, with faults
	DLOCK_MAJORITY=1 go test -race -count=1 -v -timeout 0 -run 'TestMajority$$' ./backend
	DLOCK_MAJORITY=2m go test -race -count=1 -v -timeout 0 -run TestMajority ./backend/stress

lint: ## needs golangci-lint
	golangci-lint run ./...

release: ## tries the release at the top of the changelog
	go -C internal/release run .

check: ## everything that a change must pass (Linux; installs servers with apt)
	.ci/run
