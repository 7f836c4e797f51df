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
	reply, err := s.exchange(args)
	if _, refused := err.(Error); err == nil || refused {
		return reply, err
	}
	return nil, fmt.Errorf("redistest: %q at %s: %w", args, s.Addr(), err)
}

func (s *Server) exchange(args []string) (any, error) {
	c, err := s.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	reply, err := c.do(args...)
	if err == nil {
		c.CloseWrite()
		io.Copy(io.Discard, c.replies) // until the server has closed it too
	}
	return reply, err
}

// A conn is a connection to a server.
type conn struct {
	*net.TCPConn
	replies *bufio.Reader
}

func (s *Server) connect() (*conn, error) {
	end := time.Now().Add(s.limit)
	nc, err := (&net.Dialer{Deadline: end}).Dial("tcp4", s.Addr())
	if err != nil {
		return nil, err
	}
	c := &conn{nc.(*net.TCPConn), bufio.NewReader(nc)}
	err = c.SetDeadline(end)
	if err == nil && s.password != "" {
		_, err = c.do("AUTH", s.password)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// do sends a command, and returns the reply. The error is an Error if that is the reply.
func (c *conn) do(args ...string) (any, error) {
	if _, err := io.WriteString(c, encode(args)); err != nil {
		return nil, err
	}
	reply, err := decode(c.replies)
	if refused, ok := reply.(Error); ok {
		return nil, refused
	}
	return reply, err
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
