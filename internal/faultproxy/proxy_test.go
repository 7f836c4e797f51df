package faultproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fake is a server that remembers what it has received, and answers each line, or
// each command of RESP, with the same in capital letters.
type fake struct {
	t    *testing.T
	addr string
	got  chan string // one request each

	mu    sync.Mutex
	conns int
}

func newFake(t *testing.T) *fake {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &fake{t: t, addr: l.Addr().String(), got: make(chan string, 100)}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns++
			f.mu.Unlock()
			all.Go(func() { f.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return f
}

func (f *fake) serve(conn net.Conn) {
	defer conn.Close()
	r := &respReader{in: bufio.NewReader(conn)}
	for {
		args, err := r.command()
		if err != nil {
			return
		}
		r.take()
		text := strings.Join(args, " ")
		f.got <- text
		fmt.Fprintf(conn, "+%s\r\n", strings.ToUpper(text))
	}
}

func (f *fake) connections() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.conns
}

// next is the request that the server has received next.
func (f *fake) next() string {
	f.t.Helper()
	select {
	case text := <-f.got:
		return text
	case <-time.After(patience):
		f.t.Fatal("the server has received nothing")
		return ""
	}
}

// nothing checks that the server has received no more than was read with next. Call
// it when what would have brought something has ended.
func (f *fake) nothing() {
	f.t.Helper()
	select {
	case text := <-f.got:
		f.t.Fatalf("the server has received %q", text)
	default:
	}
}

const patience = 20 * time.Second

// A caller is a client's connection.
type caller struct {
	net.Conn
	t  *testing.T
	in *bufio.Reader
}

func dial(t *testing.T, addr string) *caller {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return &caller{conn, t, bufio.NewReader(conn)}
}

func (c *caller) send(text string) {
	c.t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(c.t, err)
}

// gets sends a text, and checks what comes next.
func (c *caller) gets(text, reply string) {
	c.t.Helper()
	c.send(text)
	c.reads(reply)
}

// reads checks that the next bytes are those of text.
func (c *caller) reads(text string) {
	c.t.Helper()
	got := make([]byte, len(text))
	n, err := io.ReadFull(c.in, got)
	require.NoError(c.t, err, "after %q", got[:n])
	require.Equal(c.t, text, string(got))
}

// ends checks that nothing comes before the connection ends.
func (c *caller) ends() {
	c.t.Helper()
	rest, err := io.ReadAll(c.in)
	require.Empty(c.t, string(rest))
	require.NotErrorIs(c.t, err, os.ErrDeadlineExceeded, "the connection has not ended")
}

// rest is what comes before the connection is cut.
func (c *caller) rest() string {
	var all strings.Builder
	_, _ = c.in.WriteTo(&all)
	return all.String()
}

// hearsNothing checks that nothing comes for a while, and that the connection stays open.
func (c *caller) hearsNothing() {
	c.t.Helper()
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	b, err := c.in.ReadByte()
	require.ErrorIs(c.t, err, os.ErrDeadlineExceeded, "received %q", b)
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(patience)))
}

// resp is a command in RESP.
func resp(args ...string) string { return string(command(args)) }

func start(t *testing.T, store string) *Proxy {
	p, err := New(store)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// rig starts a server and a Proxy before it, and dials.
func rig(t *testing.T) (*fake, *Proxy, *caller) {
	f := newFake(t)
	p := start(t, f.addr)
	return f, p, dial(t, p.Addr())
}

func await(t *testing.T, what <-chan struct{}) {
	t.Helper()
	select {
	case <-what:
	case <-time.After(patience):
		t.Fatal("it has not happened")
	}
}

func open(what <-chan struct{}) bool {
	select {
	case <-what:
		return false
	default:
		return true
	}
}

// Dialects are how the requests of a test are written.
var dialects = map[string]func(string) string{
	"RESP":  func(text string) string { return resp(strings.Fields(text)...) },
	"lines": func(text string) string { return text + "\r\n" },
}

func inAllDialects(t *testing.T, test func(t *testing.T, say func(string) string, f *fake, p *Proxy, c *caller)) {
	for name, say := range dialects {
		t.Run(name, func(t *testing.T) {
			f, p, c := rig(t)
			test(t, say, f, p, c)
		})
	}
}

func TestPassesOn(t *testing.T) {
	inAllDialects(t, func(t *testing.T, say func(string) string, f *fake, p *Proxy, c *caller) {
		watch := p.Watch(Contains("two"))
		c.gets(say("one"), "+ONE\r\n")
		require.True(t, open(watch.Struck()))
		c.gets(say("two"), "+TWO\r\n")
		await(t, watch.Struck())
		await(t, watch.Answered())
	})
}

// A reply is dropped when the store has got the request, and with a request all that comes after it.
func TestDrop(t *testing.T) {
	inAllDialects(t, func(t *testing.T, say func(string) string, f *fake, p *Proxy, other *caller) {
		for i := range 4 {
			ending, ofReply := Ending(i%2), i < 2
			c, drop := dial(t, p.Addr()), p.DropRequest
			if ofReply {
				drop = p.DropReply
			}
			fault := drop(Contains("two"), ending)
			c.gets(say("one"), "+ONE\r\n")
			require.Equal(t, "one", f.next())
			c.send(say("two"))
			await(t, fault.Struck())
			require.Equal(t, !ofReply, open(fault.Answered()))
			if ofReply {
				require.Equal(t, "two", f.next())
			}
			if ending == Cut {
				c.ends()
			} else if c.send(say("three")); ofReply {
				require.Equal(t, "three", f.next(), "requests do not reach the store any more")
				c.hearsNothing()
			} else {
				c.hearsNothing()
			}
			other.gets(say("two"), "+TWO\r\n")
			require.Equal(t, "two", f.next())
			f.nothing()
		}
	})
}

func TestHold(t *testing.T) {
	inAllDialects(t, func(t *testing.T, say func(string) string, f *fake, p *Proxy, c *caller) {
		other := dial(t, p.Addr())
		hold := p.Hold(Contains("two"), Stall)
		require.ErrorIs(t, hold.Deliver(t.Context()), errNotHeld)
		c.send(say("two"))
		await(t, hold.Struck())
		c.send(say("three"))
		other.gets(say("later"), "+LATER\r\n")
		require.Equal(t, "later", f.next())
		c.hearsNothing()
		f.nothing()
		require.NoError(t, hold.Deliver(t.Context()))
		c.reads("+TWO\r\n+THREE\r\n")
		require.Equal(t, "two", f.next())
		require.Equal(t, "three", f.next())
		require.NoError(t, hold.Deliver(t.Context()), "for the second time")
	})
}

// What is held reaches the store over the connection that it was sent for, after that
// of the client has ended in one way or the other.
func TestHoldOutlivesTheClient(t *testing.T) {
	ends := map[string]func(*Proxy, *caller){
		"closed by the client": func(_ *Proxy, c *caller) { c.Close() },
		"cut with others":      func(p *Proxy, c *caller) { p.Cut(); c.ends() },
		"refused":              func(p *Proxy, c *caller) { p.Refuse(); c.ends() },
	}
	inAllDialects(t, func(t *testing.T, say func(string) string, f *fake, p *Proxy, _ *caller) {
		for name, end := range ends {
			c := dial(t, p.Addr())
			c.gets(say("select"), "+SELECT\r\n")
			require.Equal(t, "select", f.next())
			hold := p.Hold(Contains("two"), Stall)
			c.send(say("two"))
			await(t, hold.Struck())
			end(p, c)
			conns := f.connections()
			f.nothing()
			require.NoError(t, hold.Deliver(t.Context()), name)
			require.Equal(t, "two", f.next())
			require.Equal(t, conns, f.connections(), "it was delivered over another connection")
			require.NoError(t, p.Heal())
		}
		c := dial(t, p.Addr())
		hold := p.Hold(Contains("two"), Cut)
		c.send(say("two"))
		c.ends()
		f.nothing()
		require.NoError(t, hold.Deliver(t.Context()))
		require.Equal(t, "two", f.next())
	})
}

// What has been delivered does not save what comes after it from being cut.
func TestCutAfterDelivery(t *testing.T) {
	inAllDialects(t, func(t *testing.T, say func(string) string, f *fake, p *Proxy, c *caller) {
		hold := p.Hold(Any, Stall)
		c.send(say("one"))
		await(t, hold.Struck())
		require.NoError(t, hold.Deliver(t.Context()))
		c.reads("+ONE\r\n")
		p.Block(ToStore)
		c.send(say("two"))
		c.hearsNothing() // and the Proxy has time to read it
		p.Cut()
		c.ends()
		require.NoError(t, p.Heal())
		require.Eventually(t, func() bool { return len(p.present()) == 0 }, patience, time.Millisecond)
		require.Equal(t, "one", f.next())
		f.nothing()
	})
}

func TestDeliverFails(t *testing.T) {
	_, p, c := rig(t)
	hold := p.Hold(Any, Stall)
	c.send("one\r\n")
	await(t, hold.Struck())
	p.Block(ToStore) // has let this one pass already
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p.Close()
	err := hold.Deliver(ended)
	require.True(t, errors.Is(err, errEnded) || errors.Is(err, context.Canceled), "%v", err)
	require.ErrorIs(t, hold.Deliver(t.Context()), errEnded)
	require.ErrorIs(t, p.Watch(Any).Deliver(t.Context()), errNotHeld)
}

func TestCutReply(t *testing.T) {
	inAllDialects(t, func(t *testing.T, say func(string) string, f *fake, p *Proxy, c *caller) {
		cut := p.CutReply(Contains("twotwo"))
		c.send(say("twotwo"))
		if strings.HasPrefix(say(""), "*") {
			c.reads("+TWO") // TWO\r\n is lost
		} else {
			c.reads("+") // more may be whole answers
		}
		c.ends()
		await(t, cut.Struck())
		require.Equal(t, "twotwo", f.next())
	})
}

// The oldest of several faults strikes, unless it was lifted.
func TestFaultsStrikeInTurn(t *testing.T) {
	_, p, c := rig(t)
	lifted, first, second := p.DropReply(Any, Cut), p.Watch(Any), p.DropReply(Any, Stall)
	require.True(t, p.Lift(lifted))
	require.False(t, p.Lift(lifted))
	c.gets("one\r\n", "+ONE\r\n")
	await(t, first.Struck())
	c.send("two\r\n")
	await(t, second.Struck())
}

func TestBlock(t *testing.T) {
	inAllDialects(t, func(t *testing.T, say func(string) string, f *fake, p *Proxy, _ *caller) {
		for _, d := range []Direction{ToStore, ToClient, Both} {
			c := dial(t, p.Addr())
			c.gets(say("one"), "+ONE\r\n")
			f.next()
			p.Block(d)
			c.send(say("two"))
			if d == ToClient {
				require.Equal(t, "two", f.next())
			}
			c.hearsNothing()
			f.nothing()
			fresh := dial(t, p.Addr())
			fresh.send(say("three"))
			fresh.hearsNothing()
			require.NoError(t, p.Heal())
			c.reads("+TWO\r\n")
			fresh.reads("+THREE\r\n")
			for len(f.got) > 0 {
				f.next()
			}
		}
	})
}

// What was sent into a black hole arrives when that has gone, as with TCP, though who has sent it has gone too.
func TestBlockedRequestArrivesLate(t *testing.T) {
	inAllDialects(t, func(t *testing.T, say func(string) string, f *fake, p *Proxy, c *caller) {
		p.Block(Both)
		c.send(say("one"))
		c.Close()
		f.nothing()
		require.NoError(t, p.Heal())
		require.Equal(t, "one", f.next())
	})
}

func TestHealWhileProcessesStart(t *testing.T) {
	p := start(t, newFake(t).addr)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				_ = exec.Command("true").Run()
			}
		})
	}
	for range 300 {
		p.Refuse()
		require.NoError(t, p.Heal())
	}
	stop()
	all.Wait()
}

func TestRefuse(t *testing.T) {
	f := newFake(t)
	p := start(t, f.addr)
	for range 3 {
		c := dial(t, p.Addr())
		c.gets("one\r\n", "+ONE\r\n")
		p.Refuse()
		c.ends()
		_, err := net.Dial("tcp", p.Addr())
		require.ErrorContains(t, err, "refused")
		require.NoError(t, p.Heal())
		require.NoError(t, p.Heal(), "of what is not ill")
	}
}

// A command is rejected in its turn: the store gets a script that returns the error.
func TestReject(t *testing.T) {
	_, p, c := rig(t)
	p.Reject(func(r Request) string {
		if r.Args[0] == "two" {
			return "ERR no two"
		}
		return ""
	})
	c.gets(resp("one")+resp("two")+resp("three"), "+ONE\r\n+EVAL RETURN {ERR = ARGV[1]} 0 ERR NO TWO\r\n+THREE\r\n")
}

// New connections lead to the new address, and those that are open to the old one.
func TestMove(t *testing.T) {
	inAllDialects(t, func(t *testing.T, say func(string) string, f *fake, p *Proxy, _ *caller) {
		other := newFake(t)
		before := dial(t, p.Addr())
		before.send(say("one"))
		require.Equal(t, "one", f.next())
		p.Move(other.addr)
		after := dial(t, p.Addr())
		after.send(say("two"))
		require.Equal(t, "two", other.next())
		before.send(say("three"))
		require.Equal(t, "three", f.next())
	})
}

// A client finds out at once, when it connects or when it reads.
func TestStoreIsNotThere(t *testing.T) {
	p := start(t, "127.0.0.1:1")
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		require.ErrorContains(t, err, "reset")
		return
	}
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestStoreCloses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	p := start(t, l.Addr().String())
	c := dial(t, p.Addr())
	store, err := l.Accept()
	require.NoError(t, err)
	defer store.Close()
	c.send(resp("GET", "k"))
	fmt.Fprint(store, "$5\r\nhal") // the store dies in mid-reply
	store.(*net.TCPConn).CloseWrite()
	c.reads("$5\r\nhal")
	c.ends()
}

func TestSlow(t *testing.T) {
	inAllDialects(t, func(t *testing.T, say func(string) string, f *fake, p *Proxy, c *caller) {
		const latency = 20 * time.Millisecond
		p.Slow(Both, Pace{Latency: latency, Jitter: latency})
		begin := time.Now()
		c.gets(say("one"), "+ONE\r\n")
		require.GreaterOrEqual(t, time.Since(begin), 2*latency)
		for i := range 20 {
			c.send(say(fmt.Sprint("n", i)))
		}
		for i := range 20 {
			c.reads(fmt.Sprintf("+N%d\r\n", i)) // in order, whatever the jitter
		}
		p.Slow(Both, Pace{})
		p.Slow(ToClient, Pace{Latency: latency})
		require.NoError(t, p.Heal())
		require.Zero(t, p.pace(ToClient))
	})
}

// The latency is that of the network, not that of each request in turn.
func TestLatencyIsSharedByAPipeline(t *testing.T) {
	_, p, c := rig(t)
	p.Slow(ToStore, Pace{Latency: 200 * time.Millisecond})
	begin := time.Now()
	const n = 100
	c.gets(strings.Repeat(resp("x"), n), strings.Repeat("+X\r\n", n))
	took := time.Since(begin)
	require.GreaterOrEqual(t, took, 200*time.Millisecond)
	require.Less(t, took, n*200*time.Millisecond/2)
}

func TestCloseInEveryState(t *testing.T) {
	for name, spoil := range map[string]func(*Proxy){
		"idle":    func(*Proxy) {},
		"blocked": func(p *Proxy) { p.Block(Both) },
		"refused": func(p *Proxy) { p.Refuse() },
		"slow":    func(p *Proxy) { p.Slow(Both, Pace{Latency: time.Hour}) },
		"held":    func(p *Proxy) { p.Hold(Any, Stall) },
		"mute":    func(p *Proxy) { p.DropReply(Any, Stall) },
		"stalled": func(p *Proxy) { p.DropRequest(Any, Stall) },
	} {
		t.Run(name, func(t *testing.T) {
			_, p, c := rig(t)
			spoil(p)
			c.Write([]byte(resp("one"))) // may be refused
			p.Close()
			p.Close() // again, which is harmless
			require.NoError(t, p.Heal(), "of a Proxy that is closed")
			_, err := net.Dial("tcp", p.Addr())
			require.Error(t, err)
			_, err = io.ReadAll(c)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection has not ended")
		})
	}
}
