// Not released: this module is for a clone of the repository.
module github.com/dlock-go/dlock/benchmarks/peers

go 1.26.0

require (
	github.com/bsm/redislock v0.10.0
	github.com/dlock-go/dlock v0.1.0
	github.com/go-redsync/redsync/v4 v4.18.1
	github.com/gomodule/redigo v1.9.3
	github.com/redis/go-redis/v9 v9.23.0
	github.com/redis/rueidis v1.0.79
	github.com/stretchr/testify v1.12.1
	golang.org/x/sys v0.49.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/dlock-go/dlock => ../../
