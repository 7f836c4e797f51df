package faultproxy

import (
	"bufio"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/redistest"
)

func TestReplies(t *testing.T) {
	for _, text := range []string{
		"+OK\r\n", "-ERR no\r\n", ":1\r\n", "_\r\n", ",1.5\r\n", "#t\r\n", "(123\r\n",
		"$-1\r\n", "$0\r\n\r\n", "$2\r\n\r\n\r\n", "=7\r\ntxt:a\r\n\r\n", "!3\r\nERR\r\n",
		"*-1\r\n", "*0\r\n", "*2\r\n*1\r\n:1\r\n$1\r\na\r\n", "~1\r\n+a\r\n", ">2\r\n+a\r\n+b\r\n",
		"%1\r\n+k\r\n*2\r\n:1\r\n:2\r\n", "|1\r\n+ttl\r\n:3\r\n*1\r\n+a\r\n",
	} {
		r := &respReader{in: bufio.NewReader(strings.NewReader(text + "+next\r\n"))}
		_, err := r.reply()
		require.NoError(t, err, "%q", text)
		require.Equal(t, text, string(r.take()))
		got, err := r.reply()
		require.NoError(t, err)
		require.Equal(t, reply{'+', "next"}, got)
	}
	for _, text := range []string{"", "+OK", "$3\r\nab", "*2\r\n:1\r\n", "x\r\n", "$x\r\n", "$9999999999\r\n", "\r\n",
		strings.Repeat("*1\r\n", 1000)} {
		r := &respReader{in: bufio.NewReader(strings.NewReader(text))}
		_, err := r.reply()
		require.Error(t, err, "%q", text)
		require.True(t, strings.HasPrefix(text, string(r.take())), "%q", text)
	}
}

func TestCommandMatches(t *testing.T) {
	evalsha := Request{Args: []string{"evalsha", "abc", "1", "key", "token"}}
	require.True(t, Command("EVALSHA")(evalsha))
	require.True(t, Command("EVALSHA", "token", "key")(evalsha))
	require.False(t, Command("EVALSHA", "tok")(evalsha))
	require.False(t, Command("EVALSHA", "evalsha")(evalsha))
	require.False(t, Command("EVAL")(evalsha))
	require.False(t, Command("EVAL")(Request{}))
}

// Several requests in a segment, and a request in several.
func TestSegments(t *testing.T) {
	f, p, c := rig(t)
	drop := p.DropReply(Command("get", "two"), Cut)
	c.gets(resp("GET", "one")+resp("GET", "1")+resp("GET", "two")[:7], "+GET ONE\r\n+GET 1\r\n")
	c.send(resp("GET", "two")[7:] + resp("GET", "three"))
	await(t, drop.Struck())
	c.ends()
	for _, want := range []string{"GET one", "GET 1", "GET two"} {
		require.Equal(t, want, f.next())
	}
}

func TestHoldInAPipeline(t *testing.T) {
	f, p, c := rig(t)
	hold := p.Hold(Command("GET", "two"), Stall)
	c.gets(resp("GET", "one")+resp("GET", "two")+resp("GET", "three"), "+GET ONE\r\n")
	await(t, hold.Struck())
	require.Equal(t, "GET one", f.next())
	f.nothing()
	require.NoError(t, hold.Deliver(t.Context()))
	c.reads("+GET TWO\r\n+GET THREE\r\n")
}

// A client that turns out to speak something else is served all the same.
func TestNotRESP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	p := start(t, l.Addr().String())
	c := dial(t, p.Addr())
	c.send("*hello\r\n")
	store, err := l.Accept()
	require.NoError(t, err)
	defer store.Close()
	server := &caller{store, t, bufio.NewReader(store)}
	server.reads("*hello\r\n")
	drop := p.DropReply(Contains("more"), Cut)
	server.send("\x00\x01")
	c.reads("\x00\x01")
	c.send("and more")
	server.reads("and more")
	server.send("lost")
	await(t, drop.Struck())
	c.ends()
}

// On a real server: a push, a message or a confirmation is not the reply to a command.
func TestPushesAreNoReplies(t *testing.T) {
	server := redistest.Start(t)
	for _, hello := range []string{"2", "3"} {
		t.Run("RESP"+hello, func(t *testing.T) {
			p := start(t, server.Addr())
			c := dial(t, p.Addr())
			get := p.Watch(Command("PING", "first"))
			c.send(resp("HELLO", hello) + resp("SUBSCRIBE", "a", "b") + resp("PING", "first"))
			await(t, get.Answered())
			drop := p.DropReply(Command("PING", "second"), Cut)
			_, err := server.Do("PUBLISH", "a", "hello")
			require.NoError(t, err)
			c.send(resp("UNSUBSCRIBE") + resp("SUBSCRIBE", "c") + resp("PING", "second"))
			await(t, drop.Struck())
			all := c.rest()
			require.Contains(t, all, "first")
			require.Contains(t, all, "hello")
			require.Contains(t, all, "unsubscribe")
			require.Regexp(t, `subscribe\r\n\$1\r\nc\r\n:\d\r\n$`, all)
		})
	}
}

// All parts of the answer to one SUBSCRIBE come before that to the next, and what a
// script returns is not taken for a message.
func TestRepliesBesidesSubscriptions(t *testing.T) {
	p, c := redis(t)
	script := p.Watch(Command("EVAL"))
	drop := p.DropReply(Command("SUBSCRIBE", "c"), Cut)
	c.send(resp("HELLO", "3") + resp("SUBSCRIBE", "z") + resp("EVAL", "return {'message', 'z', 'x'}", "0"))
	await(t, script.Answered())
	c.send(resp("SUBSCRIBE", "a", "b") + resp("SUBSCRIBE", "c"))
	await(t, drop.Struck())
	all := c.rest()
	require.True(t, strings.HasSuffix(all, "\r\n$1\r\nb\r\n:3\r\n"), "%q", all)
}

// A command that is refused, or an error of a subscription, is a reply.
func TestErrorsAreReplies(t *testing.T) {
	p, c := redis(t)
	drop := p.DropReply(Command("ECHO"), Cut)
	c.send(resp("NOSUCH") + resp("SUBSCRIBE") + "PING inline\r\n\r\n" + resp("ECHO", "x"))
	await(t, drop.Struck())
	all := c.rest()
	require.Equal(t, 2, strings.Count(all, "-ERR"))
	require.True(t, strings.HasSuffix(all, "$6\r\ninline\r\n"), "%q", all)
}

// redis starts a server and a Proxy before it, and dials.
func redis(t *testing.T) (*Proxy, *caller) {
	p := start(t, redistest.Start(t).Addr())
	return p, dial(t, p.Addr())
}
