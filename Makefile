# The commands of a contributor. CONTRIBUTING.md says when to use which.
.PHONY: short test real race coverage lint release check nightly

short: ## the quick tests
	go test -short ./...

test: ## the tests, without a server
	go test ./...

real: ## the tests, on a Redis server and real networks too
	DLOCK_REDIS=1 go test ./...

race: ## the same with the race detector
	DLOCK_REDIS=1 go test -race -count=1 -p 4 ./...

coverage: ## of what users import, by the tests without a server
	go test -coverprofile=/tmp/dlock.cover -coverpkg=$$(go list ./... | grep -v '/internal/\|/examples/\|benchmarks\|/conformance\|/stress' | paste -sd,) ./...
	go tool cover -func=/tmp/dlock.cover | tail -1

lint: ## needs golangci-lint
	golangci-lint run ./...

release: ## tries the release at the top of the changelog
	go -C internal/release run .

check: ## everything that a change must pass (Linux; installs servers with apt)
	.ci/run

nightly: ## what takes hours, or some of it: make nightly PARTS="stress schedules"
	.ci/setup nightly
	.ci/nightly $(PARTS)
