package redistest

import (
	"slices"
	"strconv"
	"strings"
	"testing"
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
// clients and inside scripts. Names are in lower case; those of subcommands are like "cluster|info". The INFO of this call is not counted, but those of earlier calls are.
func (s *Server) CommandCount(t testing.TB) map[string]int64 {
	t.Helper()
	counts := make(map[string]int64)
	info, err := s.info("commandstats")
	check(t, err)
	for stat, value := range info {
		name, _ := strings.CutPrefix(stat, "cmdstat_")
		calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		counts[name], err = strconv.ParseInt(calls, 10, 64)
		check(t, err)
	}
	return counts
}

// Slot returns the hash slot of key in Redis Cluster. Some versions support that only if they were
// started with --cluster-enabled yes.
func (s *Server) Slot(t testing.TB, key string) int {
	t.Helper()
	return int(must[int64](t, s, "CLUSTER", "KEYSLOT", key))
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
