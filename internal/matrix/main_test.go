package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The output of go test -json, shortened. In package b a test panicked; package c does not compile.
const recorded = `
{"Action":"run","Package":"a","Test":"TestAdapter"}
{"Action":"run","Package":"a","Test":"TestAdapter/Redis/NoLeaks"}
{"Action":"pass","Package":"a","Test":"TestAdapter/Redis/NoLeaks/round"}
{"Action":"output","Package":"a","Test":"TestAdapter/Redis/NoLeaks","Output":"one too many\n"}
{"Action":"fail","Package":"a","Test":"TestAdapter/Redis/NoLeaks","Elapsed":0.1}
{"Action":"pass","Package":"a","Test":"TestAdapter/Redis/Forward/NoLeaks"}
{"Action":"skip","Package":"a","Test":"TestAdapter/Redis/FenceSurvivesDataLoss"}
{"Action":"fail","Package":"a","Test":"TestAdapter/Redis"}
{"Action":"pass","Package":"a","Test":"TestAdapter/OutOfMemory"}
{"Action":"fail","Package":"a","Test":"TestAdapter"}
{"Action":"fail","Package":"a"}
{"Action":"run","Package":"b","Test":"TestRights"}
{"Action":"fail","Package":"b"}
{"Action":"build-output","ImportPath":"c","Output":"undefined: x\n"}
{"Action":"fail","Package":"c","FailedBuild":"c"}
`

func TestRow(t *testing.T) {
	contract, err := os.ReadFile("../../docs/contract.md")
	require.NoError(t, err)
	var progress strings.Builder
	counts := count(strings.NewReader(recorded), string(contract), &progress)
	require.Equal(t, "one too many\nundefined: x\n", progress.String())
	require.Equal(t, map[string]int{"pass": 2, "fail": 3, "skip": 1}, counts)

	require.Equal(t, "| Redis 7.0.15 | 2026-11-22 | 2 | 3 | 1 |\n", row("Redis 7.0.15", time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC), counts))
}

// The page is what its rows and the template make of it, and a server has one row.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../" + page)
	require.NoError(t, err)
	require.Equal(t, with(string(text)), string(text), "%s was not written by this program", page)

	const old, next = "| Redis 7.0.15 | 2026-11-22 | 2 | 3 | 1 |\n", "| Redis 7.0.15 | 2026-11-23 | 6 | 0 | 1 |\n"
	got := with("| Valkey 8.0.1 | 2026-11-22 | 9 | 0 | 0 |\n"+old, next, "| Redis 6.0.16 | 2026-11-23 | 4 | 0 | 3 |\n")
	require.Contains(t, got, "|---|---|---|---|---|\n| Redis 6.0.16 | 2026-11-23 | 4 | 0 | 3 |\n"+next+"| Valkey 8.0.1 | 2026-11-22 | 9 | 0 | 0 |\n\n")
}
