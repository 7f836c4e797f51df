package main

import (
	"context"
	"fmt"
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock/internal/mutants"
)

// variable is the number of the mutant that a program with switches runs, from 1.
const variable = "DLOCK_DRAWN_MUTANT"

// switches builds all mutants into one program, so that it is compiled once. Each mutant is a copy of its function,
// which the function calls if the mutant is the one that runs. Mutants that do not compile, and those outside of
// such functions, have no copy, and the number 0.
func switches(pkg string, all []mutant) (edits []mutants.Edit, numbers map[string]int) {
	numbers = make(map[string]int)
	for i, m := range all {
		if _, ok := call(m.in, ""); ok {
			numbers[m.id()] = i + 1
		}
	}
	dir, err := os.MkdirTemp("", "mutants")
	check(err)
	defer os.RemoveAll(dir)
	for {
		edits, lines := withSwitches(pkg, all, numbers)
		overlay, err := mutants.Overlay(dir, edits)
		check(err)
		build := exec.CommandContext(context.Background(), "go", "build", "-gcflags=-e", "-overlay", overlay, "./"+pkg)
		build.Dir = mutants.Root()
		out, err := build.CombinedOutput()
		if err == nil {
			return edits, numbers
		}
		left := len(numbers)
		for _, place := range regexp.MustCompile(`(?m)^\S*/\d+(\w+\.go):(\d+):`).FindAllStringSubmatch(string(out), -1) {
			line, _ := strconv.Atoi(place[2])
			delete(numbers, lines[place[1]][line])
		}
		if len(numbers) == left {
			check(fmt.Errorf("the mutants do not compile: %s", out))
		}
	}
}

// withSwitches returns the edits, and which mutant is on which line of a file, by the last part of its name.
func withSwitches(pkg string, all []mutant, numbers map[string]int) (edits []mutants.Edit, lines map[string]map[int]string) {
	lines = make(map[string]map[int]string)
	for _, file := range sources(pkg) {
		src := read(file)
		heads, copies, line := make(map[int]string), "", 1+strings.Count(src, "\n")
		lines[filepath.Base(file)] = make(map[int]string)
		for _, m := range all {
			number := numbers[m.id()]
			if m.file != file || number == 0 {
				continue
			}
			name := fmt.Sprint("drawn", number, m.in.Name.Name)
			calls, _ := call(m.in, name)
			heads[int(m.in.Body.Lbrace)] += fmt.Sprintf(" if drawnMutant == %d { %s };", number, calls)
			text := src[m.in.Pos()-1:m.in.Name.Pos()-1] + name + src[m.in.Name.End()-1:m.start] + m.with + src[m.end:m.in.End()-1] + "\n"
			for range strings.Count(text, "\n") {
				lines[filepath.Base(file)][line] = m.id()
				line++
			}
			copies += text
		}
		var text strings.Builder
		for i := range len(src) {
			text.WriteByte(src[i])
			text.WriteString(heads[i+1]) // a position is an offset from 1
		}
		if copies != "" {
			edits = append(edits, mutants.Edit{File: file, Old: src, New: text.String() + copies})
		}
	}
	first := sources(pkg)[0]
	clause := regexp.MustCompile(`(?m)^package \w+`).FindString(read(first))
	return append(edits, mutants.Edit{File: strings.TrimSuffix(first, ".go") + "_drawn.go", New: clause + `
import ("os"; "strconv")
var drawnMutant, _ = strconv.Atoi(os.Getenv("` + variable + `"))
`}), lines
}

// call is a call of the copy of a function in it, and false if it has parameters without names.
func call(f *ast.FuncDecl, name string) (text string, ok bool) {
	if f == nil {
		return "", false
	}
	names := func(list *ast.FieldList) (all []string) {
		if list == nil {
			return nil
		}
		for _, field := range list.List {
			if len(field.Names) == 0 {
				all = append(all, "_")
			}
			for _, n := range field.Names {
				all = append(all, n.Name)
			}
		}
		return all
	}
	receiver, args := names(f.Recv), names(f.Type.Params)
	for _, n := range append(args, receiver...) {
		if n == "_" {
			return "", false
		}
	}
	if receiver != nil {
		name = receiver[0] + "." + name
	} else if f.Type.TypeParams != nil {
		name += "[" + strings.Join(names(f.Type.TypeParams), ", ") + "]"
	}
	text = name + "(" + strings.Join(args, ", ")
	if n := f.Type.Params.NumFields(); n > 0 {
		if _, variadic := f.Type.Params.List[len(f.Type.Params.List)-1].Type.(*ast.Ellipsis); variadic {
			text += "..."
		}
	}
	if f.Type.Results == nil {
		return text + "); return", true
	}
	return "return " + text + ")", true
}
