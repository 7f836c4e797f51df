package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
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

// userEnv returns the environment of a user who finds the modules of the repository in the proxy in
// the directory work, and all others in this machine's module cache or where it gets them from.
func userEnv(work, root string) ([]string, error) {
	usual, err := command("", nil, "go", "env", "GOMODCACHE", "GOPROXY")
	if err != nil {
		return nil, err
	}
	cache, proxy, _ := strings.Cut(usual, "\n")
	return append(os.Environ(),
		goflags,
		"GOWORK=off",
		"GOMODCACHE="+filepath.Join(work, "cache"),
		"GOPROXY=file://"+filepath.Join(work, "proxy")+",file://"+filepath.Join(cache, "cache/download")+","+proxy,
		"GONOSUMDB="+root,
		"GOENV=off", "GOPRIVATE=", "GONOPROXY=",
	), nil
}

// user has a module in the directory dir.
type user struct {
	dir string
	env []string
}

// install gets m into a new module, and builds a program that imports its public packages. If m is a
// program, it is installed, and prints its help.
func (u user) install(m mod, version string) error {
	if err := os.Mkdir(u.dir, 0o700); err != nil {
		return err
	}
	if m.command {
		// The other modules come from this machine's cache, where their checksums were compared.
		if _, err := command(u.dir, append(u.env, "GOBIN="+u.dir, "GOSUMDB=off"), "go", "install", m.path+"@"+version); err != nil {
			return err
		}
		_, err := command(u.dir, u.env, filepath.Join(u.dir, path.Base(m.path)), "--help")
		return err
	}
	if _, err := command(u.dir, u.env, "go", "mod", "init", "example.com/user"); err != nil {
		return err
	}
	// The checksums of m are those that its user would get, and need no network.
	sums, err := os.ReadFile(filepath.Join(m.dir, "go.sum"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(filepath.Join(u.dir, "go.sum"), sums, 0o600); err != nil {
		return err
	}
	if _, err := command(u.dir, u.env, "go", "get", m.path+"@"+version); err != nil {
		return err
	}
	list, err := command(u.dir, u.env, "go", "list", "-e", "-f", `{{if and .GoFiles (ne .Name "main")}}{{.ImportPath}}{{end}}`, m.path+"/...")
	if err != nil {
		return err
	}
	packages := slices.DeleteFunc(strings.Fields(list), func(p string) bool { return strings.Contains(p, "/internal/") })
	get := []string{"go", "get"}
	for _, p := range packages {
		get = append(get, p+"@"+version)
	}
	if err := u.program(packages); err != nil {
		return err
	}
	if _, err := command(u.dir, u.env, get...); err != nil {
		return err
	}
	_, err = command(u.dir, u.env, "go", "run", ".")
	return err
}

// program writes a program that imports packages.
func (u user) program(imports []string) error {
	text := "package main\n"
	for _, path := range imports {
		text += fmt.Sprintf("import _ %q\n", path)
	}
	return os.WriteFile(filepath.Join(u.dir, "main.go"), []byte(text+"func main() {}\n"), 0o600)
}

// compareWithLatest prints how the API of m, which u has installed, differs from the latest of the
// given tags of the repository in the directory root.
func (u user) compareWithLatest(m mod, root, tags string, out io.Writer) error {
	found, err := command(root, nil, "git", "tag", "--list", "--sort=-v:refname", tags)
	if err != nil {
		return err
	}
	if found == "" {
		fmt.Fprintln(out, "its API: no release to compare with (git has no tag "+tags+")")
		return nil
	}
	return u.compare(m, path.Base(strings.Fields(found)[0]), out)
}

// compare prints how the API of m, which u has installed, differs from that of an earlier version.
func (u user) compare(m mod, before string, out io.Writer) error {
	apidiff, err := command("", nil, "go", "tool", "-n", "golang.org/x/exp/cmd/apidiff")
	if err != nil {
		return err
	}
	former := user{u.dir + "@" + before, append(os.Environ(), "GOWORK=off", goflags)}
	if err := former.install(m, before); err != nil {
		return err
	}
	for _, u := range []user{former, u} {
		if _, err := command(u.dir, append(u.env, goflags+" -mod=mod"), apidiff, "-m", "-w", "api", m.path); err != nil {
			return err
		}
	}
	changes, err := command(u.dir, nil, apidiff, "-m", filepath.Join(former.dir, "api"), "api")
	fmt.Fprintf(out, "its API since %s:\n%s\n", before, cmp.Or(changes, "no changes"))
	return err
}

// command runs a command in a directory, and returns its output.
func command(dir string, env []string, args ...string) (string, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(args, " "), err, out, &stderr)
	}
	return strings.TrimSpace(string(out)), nil
}
