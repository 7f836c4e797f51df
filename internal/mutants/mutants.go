// Package mutants plants faults in the code that ships, and asks the tests to find them. Tests plant faults by
// hand with it; the program in folder draw draws others.
package mutants

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// An Edit replaces the only Old in a file, or makes the file, if Old is empty.
type Edit struct{ File, Old, New string }

// Tests are tests of one package.
type Tests struct {
	In   string   // folder of the package
	Run  string   // pattern of the tests' names, as in go test -run
	Args []string // more arguments of the test program, such as its seeds or its budget
	Env  []string // more of its environment, NAME=value
	Says string   // what it prints if it fails for the right reason
}

// Root is the folder of the module. The names of files and folders in this package are relative to it.
var Root = sync.OnceValue(func() string {
	file, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		panic(err)
	}
	return filepath.Dir(strings.TrimSpace(string(file)))
})

// Apply returns the texts of the files that the edits change. It fails if an Old is not in its file exactly once.
func Apply(edits []Edit) (texts map[string]string, err error) {
	texts = make(map[string]string)
	for _, e := range edits {
		text, edited := texts[e.File]
		if !edited && e.Old != "" {
			source, err := os.ReadFile(filepath.Join(Root(), e.File))
			if err != nil {
				return nil, err
			}
			text = string(source)
		}
		if n := strings.Count(text, e.Old); e.Old != "" && n != 1 {
			return nil, fmt.Errorf("%s has %d times %q, want once", e.File, n, e.Old)
		}
		texts[e.File] = strings.Replace(text, e.Old, e.New, 1)
	}
	return texts, nil
}

// Overlay writes what Apply returns into dir, and returns the file for -overlay of the go command.
func Overlay(dir string, edits []Edit) (file string, err error) {
	texts, err := Apply(edits)
	if err != nil {
		return "", err
	}
	replace := make(map[string]string)
	for name, text := range texts {
		path := filepath.Join(dir, fmt.Sprint(len(replace), filepath.Base(name)))
		replace[filepath.Join(Root(), name)] = path
		err = cmp.Or(err, os.WriteFile(path, []byte(text), 0o600))
	}
	list, _ := json.Marshal(map[string]any{"Replace": replace}) // a map of strings has no errors
	file = filepath.Join(dir, "overlay.json")
	return file, cmp.Or(err, os.WriteFile(file, list, 0o600))
}

// Build compiles the tests of the package in folder pkg, with the edits, into dir. The flags are those of go test.
func Build(ctx context.Context, dir, pkg string, edits []Edit, flags ...string) (program string, err error) {
	overlay, err := Overlay(dir, edits)
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, strings.ReplaceAll(pkg, "/", "-")+".test")
	args := append([]string{"test", "-c", "-overlay", overlay, "-o", program}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	cmd.Dir = Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return program, nil
}

// Command is the run of a program that Build has made.
func (t Tests) Command(ctx context.Context, program string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, append([]string{"-test.run=" + t.Run}, t.Args...)...)
	cmd.Dir, cmd.Env = filepath.Join(Root(), t.In), append(os.Environ(), t.Env...)
	return cmd
}

// Fail runs the tests in a program, and returns what it prints. It is an error if they pass, if none of them ran, or
// if they fail and do not say what they must.
func (t Tests) Fail(ctx context.Context, program string) (output string, err error) {
	out, err := t.Command(ctx, program).CombinedOutput()
	if output = string(out); ctx.Err() != nil {
		return output, context.Cause(ctx)
	} else if err == nil || !strings.Contains(output, t.Says) {
		return output, fmt.Errorf("the tests %s of %s do not find it: %v, want a failure that says %q", t.Run, t.In, err, t.Says)
	}
	return output, nil
}
