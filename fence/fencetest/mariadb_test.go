//go:build unix

package fencetest_test

import (
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

var errNoMariaDB = errors.New("there is no MariaDB: install one (apt-get install mariadb-server)")

// script runs a server until its standard input ends, and removes what it has written.
const script = `
dir=$1 port=$2
exec 3<&0
user=; [ "$(id -u)" != 0 ] || { user=--user=mysql; chown mysql "$dir"; }
mariadb-install-db --no-defaults $user --datadir="$dir/data" --auth-root-authentication-method=normal --skip-test-db && {
	mariadbd --no-defaults $user --datadir="$dir/data" --socket="$dir/s" --pid-file="$dir/pid" --bind-address=127.0.0.1 \
		--port="$port" --max-connections=300 --innodb-flush-log-at-trx-commit=0 --skip-name-resolve &
	pid=$!
	{ cat <&3 >/dev/null; kill -QUIT $pid; } &
	wait $pid
}
rm -rf "$dir"
`

// startMariaDB starts a server on a free port of the loopback interface, and returns its address.
func startMariaDB() (addr string, err error) {
	path := os.Getenv("PATH") + ":/usr/sbin"
	os.Setenv("PATH", path)
	if _, err := exec.LookPath("mariadbd"); err != nil {
		return "", errNoMariaDB
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	addr = l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	l.Close()
	dir, err := os.MkdirTemp("", "fencetest-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("/bin/sh", "-c", script, "sh", dir, port)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C ends the test, and the test ends the server
	life, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	stopMariaDB = func() { life.Close(); _ = cmd.Wait() }
	db, err := sql.Open("mysql", "root@tcp("+addr+")/")
	if err != nil {
		return "", err
	}
	defer db.Close()
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		if _, err = db.Exec("CREATE DATABASE test"); err == nil {
			return addr, nil
		}
	}
	text, _ := os.ReadFile(log.Name())
	return "", fmt.Errorf("MariaDB does not answer: %w\nits log:\n%s", err, text)
}
