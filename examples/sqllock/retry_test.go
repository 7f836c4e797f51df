//go:build unix

package sqllock_test

import (
	"testing"
	"time"

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
	for _, c := range calls(soon(t), l, "key", "holder") {
		acquire(t, l, "key", "holder", time.Minute)
		if err := c.do(); err != nil { // prepares the statement
			t.Fatalf("%s = %v", c.name, err)
		}
		acquire(t, l, "key", "holder", time.Minute)
		before := number(t, db, "SELECT count(*) FROM writes")
		p.DropReply(faultproxy.Any, faultproxy.Cut)
		if err := c.do(); err == nil {
			t.Errorf("%s, whose reply was lost: no error", c.name)
		}
		if n := number(t, db, "SELECT count(*) FROM writes") - before; n != 1 {
			t.Errorf("%s, whose reply was lost, wrote %d times; want once", c.name, n)
		}
	}
}
