module github.com/dlock-go/dlock

go 1.26.0

require (
	github.com/alicebob/miniredis/v2 v2.35.0
	github.com/gomodule/redigo v1.8.9
	github.com/redis/go-redis/v9 v9.5.1
	github.com/redis/rueidis v1.0.77
	github.com/stretchr/testify v1.8.4
	github.com/yuin/gopher-lua v1.1.1
	go.uber.org/goleak v1.3.0
	pgregory.net/rapid v1.1.0
)

require (
	github.com/cespare/xxhash/v2 v2.2.0 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/kr/text v0.2.0 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
