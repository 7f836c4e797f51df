module github.com/dlock-go/dlock/integrate/gocron

go 1.26.0

require (
	github.com/dlock-go/dlock v0.1.0
	github.com/go-co-op/gocron/v2 v2.16.1
	github.com/google/uuid v1.6.0
	github.com/robfig/cron/v3 v3.0.1
	github.com/stretchr/testify v1.10.0
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/jonboulle/clockwork v0.5.0 // indirect
	github.com/kr/pretty v0.3.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

replace github.com/dlock-go/dlock => ../..
