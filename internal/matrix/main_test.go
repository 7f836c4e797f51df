package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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

func contract(t *testing.T) suite {
	s, err := readContract("../../docs/contract.md")
	require.NoError(t, err)
	return s
}

func TestTable(t *testing.T) {
	var progress strings.Builder
	outcomes, err := collect(strings.NewReader(recorded), &progress)
	require.NoError(t, err)
	require.Equal(t, "one too many\nundefined: x\n", progress.String())
	row := contract(t).count(outcomes).row("Redis 7.0.15", "2026-11-22")
	require.Equal(t, "| Redis 7.0.15 | 2026-11-22 | 2 | 3 | 1 |\n", row)
}

// The table in the documentation is as the program prints it.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/servers.md")
	require.NoError(t, err)
	_, rows, found := strings.Cut(string(page), header)
	require.True(t, found, "the page has no table that begins with\n%s", header)
	rows, _, _ = strings.Cut(rows, "\n\n")
	for row := range strings.Lines(rows + "\n") {
		require.Regexp(t, `^\| (Redis|Valkey) [0-9.]+ \| 20\d\d-\d\d-\d\d \| \d+ \| \d+ \| \d+ \|$`, strings.TrimSpace(row))
	}
}

func TestBrokenServers(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	require.NoError(t, os.WriteFile(broken, []byte("#!/bin/sh\necho I am a database\n"), 0o700))
	for _, path := range []string{broken, "/no/such/server"} {
		_, err := find([]string{path}, "")
		require.ErrorContains(t, err, `argument "`+path+`"`)
		_, err = find(nil, path)
		require.ErrorContains(t, err, envServers+` "`+path+`"`)
	}
	t.Setenv("PATH", "")
	_, err := find(nil, "")
	require.ErrorContains(t, err, envServers)
}
