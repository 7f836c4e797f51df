package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// An Error is an error reply of the server, such as "ERR syntax error".
type Error string

func (e Error) Error() string { return string(e) }

// Do sends one command, and returns the reply: a string (simple or bulk), an int64, a []any of
// replies, or nil for a null. An error reply is returned as an Error; inside a []any it is an
// element. Any other error means that there was no reply within 5 s.
//
// Each Do uses a connection of its own, so SELECT or MULTI has no effect on the next Do. When Do
// returns a reply, the server has closed the connection. If Start was given --requirepass, Do
// sends AUTH first.
func (s *Server) Do(args ...string) (any, error) {
	reply, err := s.exchange(args)
	if _, refused := err.(Error); err == nil || refused {
		return reply, err
	}
	return nil, fmt.Errorf("redistest: %q at %s: %w", args, s.Addr(), err)
}

func (s *Server) exchange(args []string) (any, error) {
	end := time.Now().Add(s.limit)
	nc, err := (&net.Dialer{Deadline: end}).Dial("tcp4", s.Addr())
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	if err := nc.SetDeadline(end); err != nil {
		return nil, err
	}
	replies := bufio.NewReader(nc)
	commands := [][]string{args}
	if s.password != "" {
		commands = [][]string{{"AUTH", s.password}, args}
	}
	var reply any
	for _, command := range commands {
		if _, err := io.WriteString(nc, encode(command)); err != nil {
			return nil, err
		}
		if reply, err = decode(replies); err != nil {
			return nil, err
		}
		if refused, ok := reply.(Error); ok {
			return nil, refused
		}
	}
	nc.(*net.TCPConn).CloseWrite()
	io.Copy(io.Discard, replies) // until the server has closed it too
	return reply, nil
}

// encode and decode speak RESP2, https://redis.io/docs/latest/develop/reference/protocol-spec/.
func encode(args []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}

func decode(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("empty line in place of a reply")
	}
	switch rest := line[1:]; line[0] {
	case '+':
		return rest, nil
	case '-':
		return Error(rest), nil
	case ':':
		return strconv.ParseInt(rest, 10, 64)
	case '$', '*':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return nil, err
		}
		if line[0] == '$' {
			b := make([]byte, n+len("\r\n"))
			_, err := io.ReadFull(r, b)
			return string(b[:n]), err
		}
		array := make([]any, n)
		for i := range array {
			if array[i], err = decode(r); err != nil {
				return nil, err
			}
		}
		return array, nil
	}
	return nil, fmt.Errorf("unexpected reply %q", line)
}

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
	for stat, value := range s.Info(t, "commandstats") {
		name, _ := strings.CutPrefix(stat, "cmdstat_")
		calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		check(t, err)
		counts[name] = n
	}
	return counts
}

// Slot returns the hash slot of key in Redis Cluster. Some versions support that only if they were
// started with --cluster-enabled yes.
func (s *Server) Slot(t testing.TB, key string) int {
	t.Helper()
	return int(must[int64](t, s, "CLUSTER", "KEYSLOT", key))
}

// Info returns one section of INFO, by field.
func (s *Server) Info(t testing.TB, section string) map[string]string {
	t.Helper()
	info, err := s.info(section)
	check(t, err)
	return info
}

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
