package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMutants(t *testing.T) {
	const before, after = "package p\nfunc (b *box) f(x int) (int, error) {\n\t", "\n}\n"
	for line, want := range map[string][]string{
		"if x < 2 {\n}":                       {"if x <= 2 {\n}", "if x < (2 + 1) {\n}", "if !(x < 2) {\n}"},
		"if v := f(); x == y && v {\n}":       {"if v := f(); x != y && v {\n}", "if v := f(); x == y || v {\n}"},
		"for ; x; x++ {\n}":                   {"for ; !(x); x++ {\n}", "for ; x; x-- {\n}"},
		"x += y":                              {"x -= y", ""},
		"wait(2 * time.Second) // + \"true\"": {"wait(2 / time.Second) // + \"true\"", "wait((2 + 1) * time.Second) // + \"true\"", ""},
		"return x, nil":                       {"return ", ""},
		"for {\n\t\tbreak\n\t}":               {"for {\n\t\tcontinue\n\t}", "for {\n\t\t\n\t}"},
		"x := true":                           {"x := false", ""},
	} {
		src, got := before+line+after, []string(nil)
		for _, m := range mutantsOf("p.go", src) {
			got = append(got, strings.TrimSuffix(strings.TrimPrefix(src[:m.start]+m.with+src[m.end:], before), after))
			assert.Equal(t, "(b *box) f", m.fn)
		}
		assert.ElementsMatch(t, want, got, line)
	}
	assert.Len(t, mutantsOf("a.lua", "if not a == 1 and b then -- not 2\n  call('GET', 1)\nend"), 6)
}
