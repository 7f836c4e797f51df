package main

import (
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A mutant replaces src[start:end] of a file.
type mutant struct {
	pkg, fn, text, op string // text is the line, with single spaces
	nth               int    // among those that are equal in all this

	file, src, with  string
	line, start, end int
	in               *ast.FuncDecl // or nil
}

// id is the same in whatever file and on whatever line the mutant is.
func (m mutant) id() string {
	sum := sha256.Sum256(fmt.Append(nil, m.pkg, "\t", m.fn, "\t", m.text, "\t", m.op, "\t", m.nth))
	return fmt.Sprintf("%x", sum[:6])
}

// In a language some words have others in their place, and numbers have the next. The others hide what is in them. A
// rule has a name, an expression, and what takes the place of its group. Mutants that do not compile are left out later.
var languages = map[string]struct {
	words string
	swaps string // in pairs
	rules [][3]string
}{
	".go": {
		"`[^`]*`" + `|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])+'|//.*|&&|\|\||[-+*/=!<>:]=|\+\+|--|<-|[-+*/<>]|\b\w+\b`,
		"< <= > >= == != && || + - * / += -= ++ -- true false break continue",
		[][3]string{
			{"drop", `(?m)^\t+([^\s/{}].*[^{(,:\n])$`, ""},
			{"negate", `(?m)\b(?:if|for)(?: [^;\n]*;)? ([^=;\n]+)(?:;.*)? \{$`, "!($1)"}, // == and != are swapped
			{"return zero", `(?m)^\t+return (.+)$`, ""},                                  // see switches
		},
	},
	".lua": {
		`--.*|'[^'\n]*'|==|~=|<=|>=|[<>+]|\b\w+\b`,
		"== ~= < <= > >= + - and or true false",
		[][3]string{{"drop", `(?m)^ *((?:redis\.)?\w+\(.*\))$`, ""}, {"drop not", `(?m)^[^-\n]*\b(not )`, ""}},
	},
}

// mutantsOf returns the mutants of a file.
func mutantsOf(file, src string) (all []mutant) {
	lang := languages[filepath.Ext(file)]
	swaps := strings.Fields(lang.swaps)
	for _, at := range regexp.MustCompile(lang.words).FindAllStringIndex(src, -1) {
		if word := src[at[0]:at[1]]; strings.Trim(word, "0123456789") == "" {
			all = append(all, mutant{op: "constant + 1", start: at[0], end: at[1], with: "(" + word + " + 1)"})
		} else if i := slices.Index(swaps, word); i >= 0 {
			all = append(all, mutant{op: word + " to " + swaps[i^1], start: at[0], end: at[1], with: swaps[i^1]})
		}
	}
	for _, r := range lang.rules {
		for _, at := range regexp.MustCompile(r[1]).FindAllStringSubmatchIndex(src, -1) {
			all = append(all, mutant{op: r[0], start: at[2], end: at[3], with: strings.ReplaceAll(r[2], "$1", src[at[2]:at[3]])})
		}
	}
	var functions []ast.Decl
	if filepath.Ext(file) == ".go" {
		functions = must(parser.ParseFile(token.NewFileSet(), file, src, 0)).Decls // a position is an offset from 1
	}
	for i := range all {
		m := &all[i]
		text, _, _ := strings.Cut(src[strings.LastIndexByte(src[:m.start], '\n')+1:], "\n")
		m.text, m.file, m.src, m.line, m.fn = strings.Join(strings.Fields(text), " "), file, src, line(src, m.start), filepath.Base(file)
		for _, d := range functions {
			if f, ok := d.(*ast.FuncDecl); ok && int(f.Body.Lbrace) <= m.start && m.end < int(f.Body.Rbrace) {
				m.in, m.fn = f, strings.TrimPrefix(src[f.Pos()-1:f.Type.Params.Pos()-1], "func ")
			}
		}
	}
	return slices.DeleteFunc(all, func(m mutant) bool {
		_, err := parser.ParseFile(token.NewFileSet(), file, src[:m.start]+m.with+src[m.end:], 0)
		zero := m.op == "return zero" && strings.Contains(` nil 0 "" false true `, " "+src[m.start:m.end]+" ")
		return functions != nil && (err != nil || zero || m.in == nil && m.op == "drop")
	})
}

// line is the number of the line at an offset.
func line(src string, offset int) int { return 1 + strings.Count(src[:offset], "\n") }

// drawn returns n mutants of a package.
func drawn(pkg string, n int) (all []mutant) {
	count := make(map[string]int)
	for _, file := range append(must(filepath.Glob(filepath.Join(pkg, "*.go"))), must(filepath.Glob(filepath.Join(pkg, "lua/*.lua")))...) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range mutantsOf(file, string(must(os.ReadFile(file)))) {
			m.pkg = pkg
			equal := m.id()
			m.nth = count[equal]
			count[equal]++
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b mutant) int { return strings.Compare(a.id(), b.id()) })
	return all[:min(len(all), n)]
}
