package main

import (
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/dlock-go/dlock/internal/mutants"
)

// A mutant replaces source[start:end] of a file.
type mutant struct {
	fn, text, op string // text is the line, with single spaces
	nth          int    // among those of the package that are equal in all this

	file             string
	line, start, end int
	with             string
	in               *ast.FuncDecl // nil: none
	first, last      int           // its lines
}

// id is the same in whatever file and on whatever line the mutant is.
func (m mutant) id() string {
	sum := sha256.Sum256(fmt.Append(nil, m.fn, "\t", m.text, "\t", m.op, "\t", m.nth))
	return fmt.Sprintf("%x", sum[:6])
}

// drawn returns the mutants of a package in the order of seed, after those that were drawn before.
func drawn(pkg string, seed uint64, before func(id string) bool) (all []mutant) {
	count := make(map[string]int)
	for _, path := range sources(pkg) {
		of := mutantsOf
		if filepath.Ext(path) == ".lua" {
			of = mutantsOfLua
		}
		for _, m := range of(path, read(path)) {
			equal := m.id()
			m.nth = count[equal]
			count[equal]++
			all = append(all, m)
		}
	}
	place := func(m mutant) string {
		if before(m.id()) {
			return ""
		}
		sum := sha256.Sum256(fmt.Append(nil, seed, "\t", m.id()))
		return string(sum[:])
	}
	slices.SortStableFunc(all, func(a, b mutant) int { return strings.Compare(place(a), place(b)) })
	return all
}

// sources are the files of a package that are not tests, relative to the module.
func sources(pkg string) (files []string) {
	paths := goes("list", "-f", `{{range .GoFiles}}{{$.Dir}}/{{.}} {{end}}`, "./"+pkg)
	lua, _ := filepath.Glob(filepath.Join(mutants.Root(), pkg, "lua", "*.lua"))
	for _, path := range append(strings.Fields(paths), lua...) {
		files = append(files, relative(path))
	}
	return files
}

// relative is a path in the module.
func relative(path string) string {
	path, err := filepath.Rel(mutants.Root(), path)
	check(err)
	return path
}

func read(file string) string {
	text, err := os.ReadFile(filepath.Join(mutants.Root(), file))
	check(err)
	return string(text)
}

// swaps are the operators that put one word in place of another.
var swaps = map[string]string{
	"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
	"+": "-", "-": "+", "*": "/", "/": "*", "+=": "-=", "-=": "+=", "++": "--", "--": "++",
	"true": "false", "false": "true", "break": "continue", "continue": "break",
	"time.Millisecond": "(2 * time.Millisecond)", "time.Second": "(2 * time.Second)",
	"time.Minute": "(2 * time.Minute)", "time.Hour": "(2 * time.Hour)",
}

// mutantsOf returns the mutants of a Go file, and none if it is generated.
func mutantsOf(path, src string) (all []mutant) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, src, parser.ParseComments)
	check(err)
	if ast.IsGenerated(f) {
		return nil
	}
	at := func(p token.Pos) int { return files.Position(p).Offset }
	text := func(n ast.Node) string { return src[at(n.Pos()):at(n.End())] }
	ast.PreorderStack(f, nil, func(n ast.Node, parents []ast.Node) bool {
		fn, in, results := enclosing(parents)
		add := func(op string, start, end token.Pos, with string) {
			all = append(all, newMutant(path, src, fn, op, at(start), at(end), with, in))
		}
		swap := func(word string, p token.Pos) {
			if with := swaps[word]; with != "" {
				add(word+" to "+with, p, p+token.Pos(len(word)), with)
			}
		}
		negate := func(cond ast.Expr) {
			b, comparison := cond.(*ast.BinaryExpr)
			if cond != nil && !(comparison && (b.Op == token.EQL || b.Op == token.NEQ)) { // those are swapped
				add("negate", cond.Pos(), cond.End(), "!("+text(cond)+")")
			}
		}
		drop := func(droppable bool) {
			if droppable && inBlock(parents) {
				add("drop", n.Pos(), n.End(), "")
			}
		}
		switch n := n.(type) {
		case *ast.BinaryExpr:
			swap(n.Op.String(), n.OpPos)
		case *ast.Ident:
			swap(n.Name, n.Pos())
		case *ast.SelectorExpr:
			if _, product := parents[len(parents)-1].(*ast.BinaryExpr); !product {
				swap(text(n), n.Pos())
			}
		case *ast.BasicLit:
			if n.Kind == token.INT {
				add("constant + 1", n.Pos(), n.End(), "("+n.Value+" + 1)")
			}
		case *ast.IfStmt:
			negate(n.Cond)
		case *ast.ForStmt:
			negate(n.Cond)
		case *ast.ExprStmt, *ast.DeferStmt, *ast.GoStmt, *ast.SendStmt:
			drop(true)
		case *ast.AssignStmt:
			swap(n.Tok.String(), n.TokPos)
			drop(n.Tok != token.DEFINE)
		case *ast.IncDecStmt:
			swap(n.Tok.String(), n.TokPos)
			drop(true)
		case *ast.BranchStmt:
			swap(n.Tok.String(), n.TokPos)
			drop(endsIf(parents))
		case *ast.ReturnStmt:
			drop(endsIf(parents))
			zeros := []string{"nil", "0", `""`, "false", "true"} // the other boolean is tried anyway
			if slices.ContainsFunc(n.Results, func(e ast.Expr) bool { return !slices.Contains(zeros, text(e)) }) {
				var with []string
				for _, r := range results.List {
					with = append(with, slices.Repeat([]string{"*new(" + text(r.Type) + ")"}, max(1, len(r.Names)))...)
				}
				add("return zero", n.Results[0].Pos(), n.End(), strings.Join(with, ", "))
			}
		}
		return true
	})
	return all
}

func newMutant(file, src, fn, op string, start, end int, with string, in *ast.FuncDecl) mutant {
	line, _, _ := strings.Cut(src[strings.LastIndexByte(src[:start], '\n')+1:], "\n")
	lineOf := func(offset int) int { return 1 + strings.Count(src[:offset], "\n") }
	m := mutant{fn: fn, text: strings.Join(strings.Fields(line), " "), op: op, file: file, line: lineOf(start), start: start, end: end, with: with, in: in}
	if in != nil {
		m.first, m.last = lineOf(int(in.Pos())-1), lineOf(int(in.End())-1)
	}
	return m
}

var (
	luaWords = regexp.MustCompile(`(?m)--.*$|'[^'\n]*'|==|~=|<=|>=|[<>+]|\b\w+\b|^ *\w+\(.*\)$|^ *redis\.call\(.*\)$`)
	luaSwaps = map[string]string{
		"==": "~=", "~=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "+": "-",
		"and": "or", "or": "and", "not": "", "true": "false", "false": "true",
	}
)

// mutantsOfLua are those of a script.
func mutantsOfLua(path, src string) (all []mutant) {
	for _, at := range luaWords.FindAllStringIndex(src, -1) {
		word := src[at[0]:at[1]]
		with, swapped := luaSwaps[word]
		op := word + " to " + with
		switch {
		case strings.HasSuffix(word, ")"):
			op, with, swapped = "drop", "", true
		case strings.Trim(word, "0123456789") == "":
			op, with, swapped = "constant + 1", "("+word+" + 1)", true
		}
		if swapped {
			all = append(all, newMutant(path, src, filepath.Base(path), op, at[0], at[1], with, nil))
		}
	}
	return all
}

// inBlock reports whether a node's parent is a list of statements.
func inBlock(parents []ast.Node) bool {
	switch parents[len(parents)-1].(type) {
	case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause:
		return true
	}
	return false
}

// endsIf reports whether a return, or the like, ends a branch of an if.
func endsIf(parents []ast.Node) bool {
	_, branch := parents[len(parents)-2].(*ast.IfStmt)
	return branch
}

// enclosing returns the name of the declaration that a node is in, the function of that name, and what the innermost
// function returns.
func enclosing(parents []ast.Node) (name string, in *ast.FuncDecl, results *ast.FieldList) {
	for i, parent := range parents {
		switch p := parent.(type) {
		case *ast.FuncDecl:
			name, in, results = nameOf(p), p, p.Type.Results
		case *ast.FuncLit:
			results = p.Type.Results
		case *ast.ValueSpec:
			if i == 2 { // not within a function
				name = p.Names[0].Name
			}
		}
	}
	return name, in, results
}

// nameOf is the name of a function, or Type.Method.
func nameOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	typ, _, _ := strings.Cut(strings.TrimPrefix(types.ExprString(d.Recv.List[0].Type), "*"), "[")
	return typ + "." + d.Name.Name
}
