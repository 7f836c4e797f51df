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

	page, err := os.ReadFile("../../docs/servers.md")
	require.NoError(t, err)
	require.Contains(t, string(page), header)
	require.Equal(t, "| Redis 7.0.15 | 2026-11-22 | 2 | 3 | 1 |\n", row("Redis 7.0.15", time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC), counts))
}
