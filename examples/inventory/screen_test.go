package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestScreenOnATerminalKeepsToOneLine(t *testing.T) {
	var out bytes.Buffer
	v := &screen{&out, time.Hour, true}
	require.NoError(t, v.follow(t.Context(), newSale("test", config{workers: 1, stock: 4}, unguarded)))
	line, ok := strings.CutSuffix(strings.TrimPrefix(out.String(), "\r"), "\x1b[K\n")
	require.True(t, ok, "%q", out.String())
	require.Less(t, len(line), 80)
	require.NotContains(t, line, "\n")
}

func TestScreenElsewherePrintsPlainLines(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, newScreen(&out).follow(t.Context(), newSale("test", config{workers: 1, stock: 4}, unguarded)))
	require.Equal(t, "test            0 left   4 sold\n", out.String())
}

func TestBar(t *testing.T) {
	for done, full := range map[int]int{-1: 0, 0: 0, 50: 15, 99: 29, 100: 30, 101: 30} {
		require.Equal(t, full, strings.Count(bar(done, 100), "#"), "bar(%d, 100)", done)
	}
}

func TestPercentile(t *testing.T) {
	var waits []time.Duration
	require.Zero(t, percentile(waits, 99))
	for i := range 200 {
		waits = append(waits, time.Duration(i+1)*time.Second)
	}
	require.Equal(t, 100*time.Second, percentile(waits, 50))
	require.Equal(t, 198*time.Second, percentile(waits, 99))
	require.Equal(t, time.Second, percentile(waits[:1], 99))
}
