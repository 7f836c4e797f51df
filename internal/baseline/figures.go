package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// measured returns a value for each name.
func measured() map[string]string {
	figures := map[string]string{"coverage of . and backend/memory": coverage()}
	page, err := os.ReadFile("docs/museum.md") // TestMuseumPage keeps it true
	check(err)
	for _, m := range regexp.MustCompile(`(?m)^- \[(\w+)\]\(.* \((.*)\)$`).FindAllSubmatch(page, -1) {
		figures["museum "+string(m[1])] = string(m[2])
	}
	for _, path := range []string{"backend/internal/votetest/flaws_test.go", "backend/redlock/flaws_test.go"} {
		rows, err := os.ReadFile(path) // TestFlaws of each keeps them true
		check(err)
		for _, m := range regexp.MustCompile(`(?s)name: "(\w+)[^{]*breaks: names\{([^}]*)\}`).FindAllSubmatch(rows, -1) {
			figures["museum "+string(m[1])] = strings.ReplaceAll(string(m[2]), `"`, "")
		}
	}
	times(figures)
	files, err := exec.Command("git", "ls-files", "*.go", "*.lua", "*.md", "*.sh").Output()
	check(err)
	sizes := make(map[string]*size)
	for _, path := range strings.Fields(string(files)) {
		text, err := os.ReadFile(path)
		check(err)
		for _, folder := range []string{"all", filepath.ToSlash(filepath.Dir(path))} {
			name := "size of " + folder + " " + kindOf(path)
			if sizes[name] == nil {
				sizes[name] = new(size)
			}
			sizes[name].add(path, text)
		}
	}
	for name, s := range sizes {
		figures[name] = fmt.Sprintf("%d files, %d lines, %d exported names, %d private types", s.files, s.lines, s.exported, s.private)
	}
	return figures
}

// coverage is what the tests of packages dlock and memory reach in both.
func coverage() string {
	profile := filepath.Join(os.TempDir(), "baseline.cover")
	defer os.Remove(profile)
	passing("-coverpkg=.,./backend/memory", "-coverprofile", profile, ".", "./backend/memory")
	out, err := exec.Command("go", "tool", "cover", "-func", profile).Output()
	check(err)
	fields := strings.Fields(string(out)) // the last line is: total: (statements) 97.2%
	return fields[len(fields)-1]
}

// times adds how long the tests of each package take, and the 40 longest tests.
func times(figures map[string]string) {
	tests := passing("./...")
	slices.SortFunc(tests, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	longest := 0
	for _, e := range tests {
		name := strings.TrimPrefix(e.Package, "github.com/dlock-go/")
		if e.Test == "" {
			figures["time of package "+name] = fmt.Sprintf("%.1f s", e.Elapsed)
		} else if !strings.Contains(e.Test, "/") && longest < 40 {
			figures["time of test "+name+" "+e.Test] = fmt.Sprintf("%.1f s", e.Elapsed)
			longest++
		}
	}
}

var shows = regexp.MustCompile(`(^|/)(examples|benchmarks|reproductions|interop|internal|conformance)/`)

// kindOf says what a file is for.
func kindOf(path string) string {
	switch tests := strings.HasSuffix(path, "_test.go"); {
	case filepath.Ext(path) == ".md":
		return "pages"
	case strings.HasPrefix(filepath.Base(path), "example"), !tests && shows.MatchString(path):
		return "show"
	case tests:
		return "tests"
	}
	return "product"
}

type size struct{ files, lines, exported, private int }

// add counts a file. Methods of exported types are among the exported names.
func (s *size) add(path string, text []byte) {
	s.files++
	s.lines += bytes.Count(text, []byte("\n"))
	if filepath.Ext(path) != ".go" {
		return
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
	check(err)
	var names []*ast.Ident
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			if ast.IsExported(nameOf(f)) {
				names = append(names, f.Name)
			}
			continue
		}
		for _, spec := range d.(*ast.GenDecl).Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				names = append(names, spec.Names...)
			case *ast.TypeSpec:
				if names = append(names, spec.Name); !spec.Name.IsExported() {
					s.private++
				}
			}
		}
	}
	for _, name := range names {
		if name.IsExported() {
			s.exported++
		}
	}
}
