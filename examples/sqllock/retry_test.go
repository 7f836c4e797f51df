//go:build unix

package sqllock_test

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/examples/sqllock"
	"github.com/dlock-go/dlock/internal/sqltest"
)

// A statement whose reply is lost with its connection is not sent again by the driver
// or by database/sql: the caller must hear that the outcome is unknown.
func TestNothingIsSentTwice(t *testing.T) {
	_, db := fresh(t)
	do(t, db, "CREATE TABLE writes (n bigint)")
	do(t, db, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO writes VALUES (NEW.fence); RETURN NULL; END $$`)
	do(t, db, "CREATE TRIGGER note AFTER INSERT OR UPDATE ON dlock FOR EACH ROW EXECUTE FUNCTION note()")
	p := newProxy(t, sqltest.Postgres(t))
	l := sqllock.New(sqltest.Open(t, p.addr()))
	ctx := soon(t)
	batch := []dlock.Renewal{{Key: "key", Token: "holder", TTL: long}}

	for _, c := range []struct {
		name string
		call func() error
	}{
		{"TryAcquire", func() error { _, err := l.TryAcquire(ctx, "key", "holder", long); return err }},
		{"Renew", func() error { _, err := l.Renew(ctx, "key", "holder", long); return err }},
		{"RenewBatch", func() error { _, err := l.RenewBatch(ctx, batch); return err }},
		{"Release", func() error { _, err := l.Release(ctx, "key", "holder"); return err }},
	} {
		acquire(t, l, "key", "holder", time.Minute)
		if err := c.call(); err != nil { // prepares the statement
			t.Fatalf("%s = %v", c.name, err)
		}
		acquire(t, l, "key", "holder", time.Minute)
		before := number(t, db, "SELECT count(*) FROM writes")
		p.loseReply()
		if err := c.call(); err == nil {
			t.Errorf("%s, whose reply was lost: no error", c.name)
		}
		if n := number(t, db, "SELECT count(*) FROM writes") - before; n != 1 {
			t.Errorf("%s, whose reply was lost, wrote %d times; want once", c.name, n)
		}
	}
}

// A proxy passes everything on between clients and the server, until it is told to
// lose a reply.
type proxy struct {
	net.Listener
	server string
	lose   atomic.Bool
	copies sync.WaitGroup
}

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l, server: server}
	p.copies.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.copies.Wait() // clients were closed before
	})
	return p
}

func (p *proxy) addr() string { return p.Addr().String() }

// loseReply cuts a connection when the server next has something to say on it.
func (p *proxy) loseReply() { p.lose.Store(true) }

func (p *proxy) accept() {
	for {
		client, err := p.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			client.Close()
			continue
		}
		p.copies.Go(func() { io.Copy(server, client); server.Close() })
		p.copies.Go(func() { p.reply(client, server); client.Close(); server.Close() })
	}
}

func (p *proxy) reply(client, server net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := server.Read(buf)
		if err != nil || p.lose.CompareAndSwap(true, false) {
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}
