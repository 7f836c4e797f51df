package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
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
	if len(args) == 0 {
		return nil, errors.New("redistest: empty command")
	}
	reply, err := s.exchange(args)
	if err != nil {
		return nil, fmt.Errorf("redistest: %s at %s: %w", args[0], s.Addr(), err)
	}
	if e, ok := reply.(Error); ok {
		return nil, e
	}
	return reply, nil
}

func (s *Server) exchange(args []string) (reply any, err error) {
	end := time.Now().Add(s.limit)
	nc, err := (&net.Dialer{Deadline: end}).Dial("tcp4", s.Addr())
	if err != nil {
		return nil, err
	}
	conn := nc.(*net.TCPConn)
	defer conn.Close()
	if err := conn.SetDeadline(end); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	if s.password != "" {
		if reply, err = roundTrip(conn, r, []string{"AUTH", s.password}); err != nil || reply != "OK" {
			return reply, err
		}
	}
	if reply, err = roundTrip(conn, r, args); err != nil {
		return nil, err
	}
	conn.CloseWrite()
	io.Copy(io.Discard, r) // until the server has closed it too
	return reply, nil
}

func roundTrip(w io.Writer, r *bufio.Reader, args []string) (any, error) {
	if _, err := io.WriteString(w, encode(args)); err != nil {
		return nil, err
	}
	return decode(r)
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
			return decodeBulk(r, n)
		}
		return decodeArray(r, n)
	}
	return nil, fmt.Errorf("unexpected reply %q", line)
}

func decodeBulk(r *bufio.Reader, n int) (any, error) {
	b := make([]byte, n+len("\r\n"))
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	return string(b[:n]), nil
}

func decodeArray(r *bufio.Reader, n int) (any, error) {
	array := make([]any, n)
	for i := range array {
		var err error
		if array[i], err = decode(r); err != nil {
			return nil, err
		}
	}
	return array, nil
}
