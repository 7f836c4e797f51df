package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// With -trimpath, the build cache knows the dependencies from the last time, wherever they are.
const goflags = "GOFLAGS=-modcacherw -trimpath"

// A user has a module in the directory dir. Once something has failed, with err, methods do nothing.
type user struct {
	dir string
	env []string
	err error
}

func newUser(dir string, env []string) *user { return &user{dir, env, os.Mkdir(dir, 0o700)} }

// run runs a command, and returns its output.
func (u *user) run(args ...string) string {
	if u.err != nil {
		return ""
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = u.dir, u.env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		u.err = fmt.Errorf("%s: %w\n%s%s", strings.Join(args, " "), err, out, &stderr)
	}
	return strings.TrimSpace(string(out))
}

func (u *user) write(file, text string) {
	if u.err == nil {
		u.err = os.WriteFile(filepath.Join(u.dir, file), []byte(text), 0o600)
	}
}

// program writes a program that imports packages.
func (u *user) program(imports []string) {
	text := "package main\n"
	for _, path := range imports {
		text += fmt.Sprintf("import _ %q\n", path)
	}
	u.write("main.go", text+"func main() {}\n")
}

// userEnv returns the environment of a user who finds the modules of the repository in the proxy in
// the directory work, and all others in this machine's module cache or where it gets them from.
func userEnv(work, root string) ([]string, error) {
	var here user
	cache, proxy, _ := strings.Cut(here.run("go", "env", "GOMODCACHE", "GOPROXY"), "\n")
	return append(os.Environ(),
		goflags,
		"GOWORK=off",
		"GOMODCACHE="+filepath.Join(work, "cache"),
		"GOPROXY=file://"+filepath.Join(work, "proxy")+",file://"+filepath.Join(cache, "cache/download")+","+proxy,
		"GONOSUMDB="+root,
		"GOENV=off", "GOPRIVATE=", "GONOPROXY=",
	), here.err
}

// install gets m into a new module, and builds a program that imports its public packages. If m is a
// program, it is installed, and prints its help.
func (u *user) install(m mod, version string) {
	if m.command {
		// The other modules come from this machine's cache, where their checksums were compared.
		u.env = append(u.env, "GOBIN="+u.dir, "GOSUMDB=off")
		u.run("go", "install", m.path+"@"+version)
		u.run(filepath.Join(u.dir, path.Base(m.path)), "--help")
		return
	}
	u.run("go", "mod", "init", "example.com/user")
	// The checksums of m are those that its user would get, and need no network.
	sums, err := os.ReadFile(filepath.Join(m.dir, "go.sum"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		u.err = cmp.Or(u.err, err)
	}
	u.write("go.sum", string(sums))
	u.run("go", "get", m.path+"@"+version)
	list := u.run("go", "list", "-e", "-f", `{{if and .GoFiles (ne .Name "main")}}{{.ImportPath}}{{end}}`, m.path+"/...")
	packages := slices.DeleteFunc(strings.Fields(list), func(p string) bool { return strings.Contains(p, "/internal/") })
	u.program(packages)
	get := []string{"go", "get"}
	for _, p := range packages {
		get = append(get, p+"@"+version)
	}
	u.run(get...)
	u.run("go", "run", ".")
}

// changes says how the API of m, which u has installed, differs from the latest of the given tags of the repository in the
// directory root.
func (u *user) changes(m mod, root, tags string) string {
	repository, here := user{dir: root}, user{}
	found := strings.Fields(repository.run("git", "tag", "--list", "--sort=-v:refname", tags))
	if repository.err == nil && len(found) == 0 {
		return "no release to compare with (git has no tag " + tags + ")"
	}
	apidiff := here.run("go", "tool", "-n", "golang.org/x/exp/cmd/apidiff")
	if err := errors.Join(repository.err, here.err); err != nil {
		return fmt.Sprint("not compared: ", err)
	}
	before := path.Base(found[0])
	former := newUser(u.dir+"@"+before, append(os.Environ(), "GOWORK=off", goflags))
	former.install(m, before)
	for _, u := range []*user{former, u} {
		u.env = append(u.env, goflags+" -mod=mod")
		u.run(apidiff, "-m", "-w", "api", m.path)
	}
	differs := u.run(apidiff, "-m", filepath.Join(former.dir, "api"), "api")
	if err := errors.Join(former.err, u.err); err != nil {
		return fmt.Sprint("not compared: ", err)
	}
	return "since " + before + ":\n" + cmp.Or(differs, "no changes")
}

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
	{"backend/postgres", []string{"github.com/jackc/pgx/v5@v5.13.0"}, []string{"github.com/jackc/pgx/v5/pgxpool", "github.com/jackc/pgx/v5/stdlib"}},
	{"observe/otel", []string{"go.opentelemetry.io/otel@v1.28.0", "github.com/redis/go-redis/v9@v9.5.1"}, []string{"go.opentelemetry.io/otel/metric", "github.com/redis/go-redis/v9"}},
	{"integrate/gocron", []string{"github.com/go-co-op/gocron/v2@v2.16.1", "github.com/redis/go-redis/v9@v9.5.1"}, []string{"github.com/go-co-op/gocron/v2", "github.com/redis/go-redis/v9"}},
}

// lifts adds a package of the repository with the given root to a service, as its developer does, and returns an error that
// names each module of which the service then gets another version.
func (u *user) lifts(s service, root, version string) (err error) {
	u.env = append(u.env, "GOSUMDB=off") // the sums are compared where go.sum has them
	u.run("go", "mod", "init", "example.com/service")
	before := u.tidied(s.requires, s.imports)
	adds := root + "/" + s.adds
	after := u.tidied([]string{adds + "@" + version}, append(s.imports, adds))
	if u.err != nil {
		return u.err
	}
	for path, old := range before {
		if after[path] != old {
			err = errors.Join(err, fmt.Errorf("%s: a service gets %s %s in place of %s", s.adds, path, after[path], old))
		}
	}
	return err
}

// tidied gets modules, and returns the versions of all that a program with the given imports is then built with.
func (u *user) tidied(get, imports []string) map[string]string {
	u.program(imports)
	u.run(append([]string{"go", "get"}, get...)...)
	u.run("go", "mod", "tidy")
	versions := make(map[string]string)
	for line := range strings.Lines(u.run("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", ".")) {
		if path, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			versions[path] = version
		}
	}
	return versions
}
