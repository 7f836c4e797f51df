// Command release tries the release that CHANGELOG.md begins with, as its users will see it:
//
//	go -C internal/release run .
//
// It packs the modules of this repository into a module proxy made of files, gets each of them into
// an empty module, and builds a program with all its packages. It adds them to services with old releases of what they
// use, which must keep those. Then it prints how the API differs
// from the previous release, and the tags to set. It sets none: see docs/releasing.md.
//
// A module whose go.mod begins with "// Not released:" is left out. The requirements of such a module are
// checked all the same.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	root := flag.String("root", "../..", "the `directory` of the repository")
	flag.Parse()
	if err := try(os.Stdout, *root, services); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// try tries the release of the repository in the directory root, also in services that exist already, and reports to out.
func try(out io.Writer, root string, services []service) error {
	modules, err := find(root)
	if err != nil {
		return err
	}
	version, err := newest(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if err := sameVersion(modules, version); err != nil {
		return err
	}
	modules = slices.DeleteFunc(modules, func(m mod) bool { return !m.released })
	work, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for _, m := range modules {
		if err := m.pack(work, version); err != nil {
			return err
		}
	}
	env, err := userEnv(work, modules[0].path)
	if err != nil {
		return err
	}
	for i, m := range modules {
		u := newUser(filepath.Join(work, fmt.Sprint("user", i)), slices.Clip(env))
		if u.install(m, version); u.err != nil {
			return fmt.Errorf("%s@%s cannot be installed: %w", m.path, version, u.err)
		}
		fmt.Fprintf(out, "%s@%s can be installed\n", m.path, version)
		if !m.command { // which has no API
			fmt.Fprintln(out, "its API:", u.changes(m, root, m.tag(modules[0], "v*")))
		}
	}
	for i, s := range services {
		u := newUser(filepath.Join(work, fmt.Sprint("service", i)), slices.Clip(env))
		if err := u.lifts(s, modules[0].path, version); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s moves no module of a service\n", s.adds)
	}
	fmt.Fprintln(out, "the tags of this release:")
	for _, m := range modules {
		fmt.Fprintln(out, "\t"+m.tag(modules[0], version))
	}
	return nil
}
