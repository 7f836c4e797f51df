//go:build unix

// Package sqltest starts real database servers for tests, on free ports of the loopback interface.
//
// It imports no driver. A test imports the drivers, whose names are "pgx" and "mysql".
package sqltest

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A database is a kind of server.
type database struct {
	name, program, elsewhere string // elsewhere is where the program is if it is not on PATH
	driver, dsn              string // of the address
	install, serve           string // commands of sh, with the variables dir and port
}

// PostgreSQL's time zone is not the client's. MariaDB has an empty database "test".
var (
	postgres   = sync.OnceValues(postgreSQL.start)
	postgreSQL = database{
		name: "PostgreSQL", program: "initdb", elsewhere: "/usr/lib/postgresql/*/bin/initdb", // so does Debian
		driver: "pgx", dsn: "postgres://postgres@%s/postgres?sslmode=disable",
		install: `initdb -D "$dir/data" -U postgres -A trust -E UTF8 --no-locale -N`,
		serve:   `postgres -D "$dir/data" -h 127.0.0.1 -p "$port" -k "" -F -c timezone=Asia/Kathmandu -c max_connections=300`,
	}
	mariadb = sync.OnceValues(database{
		name: "MariaDB", program: "mariadbd", elsewhere: "/usr/sbin/mariadbd",
		driver: "mysql", dsn: "root@tcp(%s)/test",
		install: `mariadb-install-db --no-defaults --datadir="$dir/data" --auth-root-authentication-method=normal`,
		serve: `mariadbd --no-defaults --datadir="$dir/data" --socket="$dir/s" --pid-file="$dir/pid" --bind-address=127.0.0.1 \
			--port="$port" --max-connections=300 --innodb-flush-log-at-trx-commit=0 --skip-name-resolve`,
	}.start)
)

// Postgres returns the address of a server that the tests of a package share. It ends with them. Unless
// DLOCK_POSTGRES is 1, t is skipped.
func Postgres(t testing.TB) (addr string) { t.Helper(); return need(t, "DLOCK_POSTGRES", postgres) }

// MariaDB is Postgres for another server. The variable is DLOCK_MARIADB.
func MariaDB(t testing.TB) (addr string) { t.Helper(); return need(t, "DLOCK_MARIADB", mariadb) }

func need(t testing.TB, asked string, start func() (string, error)) string {
	t.Helper()
	if os.Getenv(asked) != "1" {
		t.Skipf("it is left out unless %s=1 is set", asked)
	}
	addr, err := start()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// Open returns a database of the PostgreSQL server at addr, and closes it when t ends.
func Open(t testing.TB, addr string) *sql.DB {
	t.Helper()
	db, err := sql.Open(postgreSQL.driver, fmt.Sprintf(postgreSQL.dsn, addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// start starts a server, and returns its address.
func (d database) start() (addr string, err error) {
	bin, err := d.bin()
	if err != nil {
		return "", err
	}
	for range 5 { // as somebody else may take the port before the server does
		if addr, err = d.try(bin); err == nil {
			return addr, nil
		}
	}
	return "", err
}

// bin returns the directory of the programs.
func (d database) bin() (string, error) {
	path, err := exec.LookPath(d.program)
	if found, _ := filepath.Glob(d.elsewhere); err != nil && len(found) > 0 {
		path, err = found[len(found)-1], nil
	}
	if err != nil {
		return "", fmt.Errorf("%s is not installed: %w", d.name, err)
	}
	return filepath.Dir(path), nil
}

// script runs a server until its standard input ends, as it does when the test binary
// ends, however it ends; and then removes all that it has written.
const script = `
dir=$1 port=$2
exec 3<&0
%s && {
	%s &
	pid=$!
	{ cat <&3 >/dev/null; kill -QUIT $pid; } &
	wait $pid
}
rm -rf "$dir"
`

func (d database) try(bin string) (addr string, err error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	addr, port := l.Addr().String(), l.Addr().(*net.TCPAddr).Port
	dir, err := os.MkdirTemp("", "sqltest-")
	if err := errors.Join(err, l.Close()); err != nil {
		return "", err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf(script, d.install, d.serve), "sh", dir, strconv.Itoa(port))
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = dir, log, log, append(os.Environ(), "PATH="+os.Getenv("PATH")+":"+bin)
	if err := unprivileged(cmd, dir); err != nil {
		return "", err
	}
	life, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := d.await(addr, ended); err != nil {
		text, _ := io.ReadAll(io.NewSectionReader(log, 0, 1<<20)) // also if it has been removed
		life.Close()
		return "", fmt.Errorf("%s: %w\nits log:\n%s", d.name, err, text)
	}
	return addr, nil
}

// await returns nil when the server answers.
func (d database) await(addr string, ended <-chan error) error {
	db, err := sql.Open(d.driver, fmt.Sprintf(d.dsn, addr))
	if err != nil {
		return err
	}
	defer db.Close()
	for limit := time.After(time.Minute); ; {
		if err = db.Ping(); err == nil {
			return nil
		}
		select {
		case <-ended:
			return errors.New("the server has ended")
		case <-limit:
			return fmt.Errorf("the server does not answer: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// unprivileged has a command run as a user that PostgreSQL does not refuse, and gives dir to that user. The command is in a
// group of its own, so that Ctrl-C ends the test, and the test ends the server.
func unprivileged(cmd *exec.Cmd, dir string) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() != 0 {
		return nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return err
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(dir, uid, gid)
}
