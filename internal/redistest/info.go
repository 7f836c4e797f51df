package redistest

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Keys returns all keys of database 0, sorted.
func (s *Server) Keys(t testing.TB) []string {
	t.Helper()
	reply := must[[]any](t, s, "KEYS", "*")
	keys := make([]string, len(reply))
	for i, k := range reply {
		keys[i] = k.(string)
	}
	slices.Sort(keys)
	return keys
}

// CommandCount returns the number of executions of each command since the server started, by
// clients and inside scripts. Names are in lower case; those of subcommands are like
// "cluster|info". As with Calls, the INFO of this call is not counted.
func (s *Server) CommandCount(t testing.TB) map[string]int64 {
	t.Helper()
	counts := make(map[string]int64)
	for stat, value := range s.mustInfo(t, "commandstats") {
		name, _ := strings.CutPrefix(stat, "cmdstat_")
		calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		counts[name] = number[int64](t, calls, parseInt)
	}
	return counts
}

// Calls returns the number of commands executed since the server started, by clients and inside
// scripts. It does not count its own INFO, but earlier ones: a second call returns 1 more if
// nothing else was executed in between.
func (s *Server) Calls(t testing.TB) int64 {
	t.Helper()
	return number(t, s.mustInfo(t, "stats")["total_commands_processed"], parseInt)
}

// CPU returns the CPU time of the server, user and system.
func (s *Server) CPU(t testing.TB) time.Duration {
	t.Helper()
	info := s.mustInfo(t, "cpu")
	seconds := number(t, info["used_cpu_user"], parseFloat) + number(t, info["used_cpu_sys"], parseFloat)
	return time.Duration(seconds * float64(time.Second))
}

// Slot returns the hash slot of key in Redis Cluster. Some versions support that only if they were
// started with --cluster-enabled yes.
func (s *Server) Slot(t testing.TB, key string) int {
	t.Helper()
	return int(must[int64](t, s, "CLUSTER", "KEYSLOT", key))
}

func (s *Server) mustInfo(t testing.TB, section string) map[string]string {
	t.Helper()
	info, err := s.info(section)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	return info
}

// info returns one section of INFO, by field.
func (s *Server) info(section string) (map[string]string, error) {
	reply, err := s.Do("INFO", section)
	if err != nil {
		return nil, err
	}
	return fields(reply), nil
}

// fields reads the lines of a reply that have the form field:value.
func fields(reply any) map[string]string {
	text, _ := reply.(string)
	m := make(map[string]string)
	for line := range strings.SplitSeq(text, "\r\n") {
		if field, value, ok := strings.Cut(line, ":"); ok {
			m[field] = value
		}
	}
	return m
}

// must is Do, but fails the test unless the reply is a T.
func must[T any](t testing.TB, s *Server, args ...string) T {
	t.Helper()
	reply, err := s.Do(args...)
	v, ok := reply.(T)
	if err != nil || !ok {
		t.Fatalf("redistest: %.100q: got %#v, %v, want a %T", args, reply, err, v)
	}
	return v
}

func number[T any](t testing.TB, text string, parse func(string) (T, error)) T {
	t.Helper()
	n, err := parse(text)
	if err != nil {
		t.Fatalf("redistest: INFO: %v", err)
	}
	return n
}

func parseInt(text string) (int64, error)     { return strconv.ParseInt(text, 10, 64) }
func parseFloat(text string) (float64, error) { return strconv.ParseFloat(text, 64) }
