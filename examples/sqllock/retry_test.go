//go:build unix

package sqllock_test

import (
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/examples/sqllock"
	"github.com/dlock-go/dlock/internal/faultproxy"
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
	p, err := faultproxy.New(sqltest.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	l := sqllock.New(sqltest.Open(t, p.Addr()))
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
		p.DropReply(faultproxy.Any, faultproxy.Cut)
		if err := c.call(); err == nil {
			t.Errorf("%s, whose reply was lost: no error", c.name)
		}
		if n := number(t, db, "SELECT count(*) FROM writes") - before; n != 1 {
			t.Errorf("%s, whose reply was lost, wrote %d times; want once", c.name, n)
		}
	}
}
