package stores

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // for sqltest
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/dlock-go/dlock/benchmarks/internal/figures"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/internal/sqltest"
)

// A server is one that locks are kept on.
type server struct {
	addr, version string
	pid           int // of its first process
}

// startServers starts all, with the rows that are locked. info is what Redis says of itself.
func startServers(t testing.TB) (all map[string]server, info string) {
	redis := redistest.Start(t)
	reply, err := redis.Do("INFO", "server")
	require.NoError(t, err)
	info, _ = reply.(string)
	pid, err := strconv.Atoi(figures.Field(info, "process_id"))
	require.NoError(t, err)
	all = map[string]server{"redis": {redis.Addr(), figures.Field(info, "redis_version"), pid}}

	p := server{addr: sqltest.Start(t, "fsync=on", "max_connections=1200", "authentication_timeout=600", "deadlock_timeout=60s").Addr}
	pool, err := dial(t.Context(), p.addr, "on", 1)
	require.NoError(t, err)
	defer pool.Close()
	_, err = pool.Exec(t.Context(), "CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders SELECT generate_series(0, 99999)")
	require.NoError(t, err)
	var synced string
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT split_part(current_setting('server_version'), ' ', 1), current_setting('fsync'), "+
		"split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int").Scan(&p.version, &synced, &p.pid))
	require.Equal(t, "on", synced)
	all["postgres"] = p

	etcd, addr, err := startChild("etcd", t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { kill(etcd) })
	all["etcd"] = server{addr, version.Version, etcd.Process.Pid}
	return all, info
}

// startChild starts this program, and returns the line that it prints when it is ready. It ends with its standard input.
func startChild(args ...string) (c *exec.Cmd, line string, err error) {
	c = exec.Command("/proc/self/exe", append([]string{childArgument}, args...)...)
	c.Stderr, c.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // also if it is stopped
	_, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2, c.Start()); err != nil {
		return c, "", err
	}
	if line, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		kill(c)
	}
	return c, strings.TrimSpace(line), err
}

func kill(c *exec.Cmd) {
	c.Process.Kill()
	c.Wait()
}

// childArgument is followed by "etcd" and a directory, or "hold", a contestant, an address, and a TTL in ns with a key.
const childArgument = "child"

// isChild does the work of this process if another has started it for that.
func isChild() bool {
	if len(os.Args) < 3 || os.Args[1] != childArgument {
		return false
	}
	serve := map[string]func([]string) (string, error){"etcd": serveEtcd, "hold": hold}[os.Args[2]]
	ready, err := serve(os.Args[3:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(ready)
	io.Copy(io.Discard, os.Stdin)
	return true
}

func serveEtcd(args []string) (ready string, err error) {
	config := embed.NewConfig()
	config.Dir, config.LogLevel, config.LogOutputs = args[0], "error", []string{"stderr"}
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenPeerUrls, config.ListenClientUrls, config.AdvertisePeerUrls, config.AdvertiseClientUrls = free, free, free, free
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	e, err := embed.StartEtcd(config)
	if err != nil {
		return "", err
	}
	<-e.Server.ReadyNotify()
	return e.Clients[0].Addr().String(), nil
}

func holdArgument(ttl time.Duration, key int) string { return fmt.Sprintln(int64(ttl), key) }

func hold(args []string) (ready string, err error) {
	var ttl time.Duration
	var key int
	if _, err := fmt.Sscan(args[2], (*int64)(&ttl), &key); err != nil {
		return "", err
	}
	s, err := contestantOf(args[0]).open(context.Background(), args[1], use{1, 1, ttl})
	if err == nil {
		_, err = s.acquire(context.Background(), key)
	}
	return "held", err
}

// cpu is the time that the server has computed: its first process, the children of that, and those that have ended.
func (s server) cpu() (sum time.Duration) {
	const tick = 10 * time.Millisecond
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range paths {
		text := figures.Read(path)                                    // "" if it has ended
		stat := strings.Fields(text[strings.LastIndex(text, ")")+1:]) // from the state on
		first := path == fmt.Sprintf("/proc/%d/stat", s.pid)
		for i, ticks := range stat { // 11 to 14 are utime and stime, and those of children that have ended
			if first && (i >= 11 && i < 15) || stat[1] == strconv.Itoa(s.pid) && (i == 11 || i == 12) {
				n, _ := strconv.Atoi(ticks)
				sum += time.Duration(n) * tick
			}
		}
	}
	return sum
}

// connections counts the established connections to the server.
func (s server) connections() (n int) {
	_, port, _ := net.SplitHostPort(s.addr)
	number, _ := strconv.Atoi(port)
	for line := range strings.Lines(figures.Read("/proc/net/tcp")) {
		f := strings.Fields(line) // number, local address, other address, state
		if strings.HasSuffix(f[1], fmt.Sprintf(":%04X", number)) && f[3] == "01" {
			n++
		}
	}
	return n
}

const fsync = "a write of 8 kB and fsync"

// timeFsync times how long a write of 8 kB takes until it is on the disk of TMPDIR.
func timeFsync(t testing.TB) map[string][]float64 {
	var took []time.Duration
	f, err := os.Create(filepath.Join(t.TempDir(), "fsync"))
	require.NoError(t, err)
	defer f.Close()
	for range 300 {
		begun := time.Now()
		_, err := f.WriteAt(make([]byte, 8<<10), 0)
		require.NoError(t, errors.Join(err, syscall.Fdatasync(int(f.Fd()))))
		took = append(took, time.Since(begun))
	}
	return map[string][]float64{"p50 ms": {quantile(took, 0.5)}, "p99 ms": {quantile(took, 0.99)}}
}

// durable reports whether what TMPDIR keeps is on a disk.
func durable() bool {
	var fs syscall.Statfs_t
	const tmpfs = 0x01021994
	return syscall.Statfs(os.TempDir(), &fs) == nil && int64(fs.Type) != tmpfs
}
