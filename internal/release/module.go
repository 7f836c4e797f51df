package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// mod is a module of the repository.
type mod struct {
	dir, path string
	file      *modfile.File
	released  bool
	command   bool // it is a program, for go install
}

// find returns the modules of the repository in the directory root, that of root first.
func find(root string) (found []mod, err error) {
	err = filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() != "go.mod" {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		parsed, err := modfile.Parse(file, text, nil)
		if err != nil {
			return err
		}
		dir := filepath.Dir(file)
		found = append(found, mod{
			dir, parsed.Module.Mod.Path, parsed, !bytes.HasPrefix(text, []byte("// Not released:")),
			filepath.Base(filepath.Dir(dir)) == "cmd",
		})
		return nil
	})
	slices.SortFunc(found, func(a, b mod) int { return strings.Compare(a.path, b.path) })
	return found, err
}

// newest returns the version of the first release in a changelog.
func newest(changelog string) (string, error) {
	text, err := os.ReadFile(changelog)
	if err != nil {
		return "", err
	}
	heading := regexp.MustCompile(`(?m)^## (v\d+\.\d+\.\d+)`).FindSubmatch(text)
	if heading == nil {
		return "", fmt.Errorf("%s has no heading with a version, such as \"## v0.1.0\"", changelog)
	}
	return string(heading[1]), nil
}

// sameVersion returns an error if a module requires another of the repository at another version.
func sameVersion(modules []mod, version string) (err error) {
	for _, m := range modules {
		for _, r := range m.file.Require {
			ours := slices.ContainsFunc(modules, func(m mod) bool { return m.path == r.Mod.Path })
			if ours && r.Mod.Version != version {
				err = errors.Join(err, fmt.Errorf("%s requires %s, not %s", m.path, r.Mod, version))
			}
		}
	}
	return err
}

// tag returns the tag of version of m, a module of the repository with the given root.
func (m mod) tag(root mod, version string) string {
	return strings.TrimPrefix(m.path[len(root.path):]+"/"+version, "/")
}

// withoutReplace returns m in a directory of its own below work, with a go.mod that go install accepts.
func (m mod) withoutReplace(work string) (mod, error) {
	dir := filepath.Join(work, "commands", m.path)
	if err := os.CopyFS(dir, os.DirFS(m.dir)); err != nil {
		return mod{}, err
	}
	for _, r := range m.file.Replace {
		if err := m.file.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return mod{}, err
		}
	}
	m.file.Cleanup()
	text, err := m.file.Format()
	if err != nil {
		return mod{}, err
	}
	m.dir = dir
	return m, os.WriteFile(filepath.Join(dir, "go.mod"), text, 0o600)
}

// pack writes m at version into the module proxy in the directory work.
func (m mod) pack(work, version string) error {
	if m.command {
		var err error
		if m, err = m.withoutReplace(work); err != nil {
			return err
		}
	}
	base := filepath.Join(work, "proxy", m.path, "@v", version)
	if err := os.MkdirAll(filepath.Dir(base), 0o700); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(m.dir, "go.mod"))
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	return errors.Join(
		zip.CreateFromDir(&packed, module.Version{Path: m.path, Version: version}, m.dir),
		os.WriteFile(base+".zip", packed.Bytes(), 0o600),
		os.WriteFile(base+".mod", text, 0o600),
		os.WriteFile(filepath.Join(filepath.Dir(base), "list"), []byte(version), 0o600),
		os.WriteFile(base+".info", fmt.Appendf(nil, `{"Version":%q}`, version), 0o600),
	)
}
