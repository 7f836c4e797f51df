package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A service uses old releases of what a backend or an observer uses too.
type service struct {
	adds     string // a package of the repository
	requires []string
	imports  []string
}

// services are one of each kind. Their versions are the oldest that work, which go.mod requires.
var services = []service{
	{"backend/goredis", []string{"github.com/redis/go-redis/v9@v9.5.1", "github.com/stretchr/testify@v1.8.4"}, []string{"github.com/redis/go-redis/v9", "github.com/stretchr/testify/require"}},
	{"backend/redigo", []string{"github.com/gomodule/redigo@v1.8.9", "github.com/stretchr/testify@v1.8.4"}, []string{"github.com/gomodule/redigo/redis", "github.com/stretchr/testify/require"}},
	{"backend/rueidis", []string{"github.com/redis/rueidis@v1.0.77"}, []string{"github.com/redis/rueidis"}},
	{"observe/otel", []string{"go.opentelemetry.io/otel@v1.28.0", "github.com/redis/go-redis/v9@v9.5.1"}, []string{"go.opentelemetry.io/otel/metric", "github.com/redis/go-redis/v9"}},
	{"integrate/gocron", []string{"github.com/go-co-op/gocron/v2@v2.16.1", "github.com/redis/go-redis/v9@v9.5.1"}, []string{"github.com/go-co-op/gocron/v2", "github.com/redis/go-redis/v9"}},
}

// lifts adds a package of the repository with the given root to a service, as its developer does, and returns an error that
// names each module of which the service then gets another version.
func (u user) lifts(s service, root, version string) (err error) {
	if err := os.Mkdir(u.dir, 0o700); err != nil {
		return err
	}
	before, err := u.tidied(s.requires, s.imports)
	if err != nil {
		return err
	}
	adds := root + "/" + s.adds
	after, err := u.tidied([]string{adds + "@" + version}, append(s.imports, adds))
	if err != nil {
		return err
	}
	for path, old := range before {
		if after[path] != old {
			err = errors.Join(err, fmt.Errorf("%s: a service gets %s %s in place of %s", s.adds, path, after[path], old))
		}
	}
	return err
}

// tidied gets modules, and returns the versions of all that a program with the given imports is then built with.
func (u user) tidied(get, imports []string) (map[string]string, error) {
	if err := u.program(imports); err != nil {
		return nil, err
	}
	env := append(u.env, "GOSUMDB=off") // the sums are compared where go.sum has them
	for _, args := range [][]string{{"go", "mod", "init", "example.com/service"}, append([]string{"go", "get"}, get...), {"go", "mod", "tidy"}} {
		if _, err := os.Stat(filepath.Join(u.dir, "go.mod")); args[2] == "init" && err == nil {
			continue
		}
		if _, err := command(u.dir, env, args...); err != nil {
			return nil, err
		}
	}
	list, err := command(u.dir, env, "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", ".")
	versions := make(map[string]string)
	for line := range strings.Lines(list) {
		if path, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			versions[path] = version
		}
	}
	return versions, err
}
