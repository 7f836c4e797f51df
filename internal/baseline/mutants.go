package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// A mutant replaces src[start:end] of a file.
type mutant struct {
	fn, text, op string // text is the line, with single spaces
	nth          int    // among those of the package that are equal in all this

	file       string
	start, end int
	with       string
}

func (m mutant) id() string {
	return fmt.Sprintf("%s\t%s\t%s\t%d", m.fn, m.text, m.op, m.nth)
}

// drawn returns the mutants of a package in the order of seed.
func drawn(pkg string, seed uint64) (all []mutant) {
	files, err := exec.Command("go", "list", "-f", `{{range .GoFiles}}{{$.Dir}}/{{.}} {{end}}`, pkg).Output()
	check(err)
	count := make(map[string]int)
	for _, path := range strings.Fields(string(files)) {
		src, err := os.ReadFile(path)
		check(err)
		for _, m := range mutants(path, src) {
			equal := m.id()
			m.nth = count[equal]
			count[equal]++
			all = append(all, m)
		}
	}
	place := func(m mutant) string {
		sum := sha256.Sum256(fmt.Append(nil, seed, "\t", m.id()))
		return string(sum[:])
	}
	slices.SortFunc(all, func(a, b mutant) int { return strings.Compare(place(a), place(b)) })
	return all
}

// swaps are the operators that put one word in place of another.
var swaps = map[string]string{
	"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
	"+": "-", "-": "+", "*": "/", "/": "*", "+=": "-=", "-=": "+=", "++": "--", "--": "++",
	"true": "false", "false": "true", "break": "continue", "continue": "break",
	"time.Millisecond": "(2 * time.Millisecond)", "time.Second": "(2 * time.Second)",
	"time.Minute": "(2 * time.Minute)", "time.Hour": "(2 * time.Hour)",
}

// mutants returns the mutants of a file, and none if it is generated.
func mutants(path string, src []byte) (all []mutant) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, src, parser.ParseComments)
	check(err)
	if ast.IsGenerated(f) {
		return nil
	}
	at := func(p token.Pos) int { return files.Position(p).Offset }
	text := func(n ast.Node) string { return string(src[at(n.Pos()):at(n.End())]) }
	ast.PreorderStack(f, nil, func(n ast.Node, parents []ast.Node) bool {
		fn, results := enclosing(parents)
		add := func(op string, start, end token.Pos, with string) {
			m := mutant{fn: fn, op: op, file: path, start: at(start), end: at(end), with: with}
			line, _, _ := bytes.Cut(src[bytes.LastIndexByte(src[:m.start], '\n')+1:], []byte("\n"))
			m.text = string(bytes.Join(bytes.Fields(line), []byte(" ")))
			all = append(all, m)
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

// enclosing returns the name of the declaration that a node is in, and what the innermost function
// returns.
func enclosing(parents []ast.Node) (name string, results *ast.FieldList) {
	for i, parent := range parents {
		switch p := parent.(type) {
		case *ast.FuncDecl:
			name, results = nameOf(p), p.Type.Results
		case *ast.FuncLit:
			results = p.Type.Results
		case *ast.ValueSpec:
			if i == 2 { // not within a function
				name = p.Names[0].Name
			}
		}
	}
	return name, results
}

// nameOf is the name of a function, or Type.Method.
func nameOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	typ, _, _ := strings.Cut(strings.TrimPrefix(types.ExprString(d.Recv.List[0].Type), "*"), "[")
	return typ + "." + d.Name.Name
}
