package main

import (
	"os"
	"path/filepath"
	"regexp"
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
	s := contract(t)
	table := s.table([]string{"Redis 7.0.15"}, []counts{s.count(outcomes)})
	for _, line := range []string{
		"| passed / failed / skipped | Redis 7.0.15 |\n|---|---|\n| Taking | 0 / 0 / 0 |\n",
		"\n| Clients and the network | 1 / 1 / 0 |\n",
		"\n| Fences | 0 / 0 / 1 |\n",
		"\n| The adapters' own tests | 1 / 2 / 0 |\n| All | 2 / 3 / 1 |\n",
	} {
		require.Contains(t, table, line)
	}
}

// The table in the documentation has the rows that the program prints.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/servers.md")
	require.NoError(t, err)
	var rows []string
	for _, m := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllSubmatch(page, -1) {
		rows = append(rows, string(m[1]))
	}
	require.Equal(t, append([]string{"passed / failed / skipped"}, contract(t).rows()...), rows)
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
