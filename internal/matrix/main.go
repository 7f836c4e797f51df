// Command matrix runs the conformance suite and the tests of the Redis backends on several
// versions of the server, and prints a table in Markdown, with a row for each server:
//
//	go run ./internal/matrix /path/to/redis-server /path/to/valkey-server
//
// Without arguments, DLOCK_TEST_REDIS_SERVERS is the list of servers, separated as in PATH. If it
// is not set either, they are the redis-server and the valkey-server on PATH. Progress, failures and
// the reasons of what is skipped go to stderr. The exit status is 1 if a test has failed.
// docs/servers.md has a table.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"
)

const envServers = "DLOCK_TEST_REDIS_SERVERS"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	servers, err := find(args, os.Getenv(envServers))
	if err != nil {
		return err
	}
	suite, err := readContract("docs/contract.md")
	if err != nil {
		return fmt.Errorf("run it where the module is: %w", err)
	}
	var failed error
	table := header
	for _, s := range servers {
		fmt.Fprintf(os.Stderr, "%s: %s\n", s.version, s.path)
		outcomes, err := s.test()
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", s.version, err))
		}
		table += suite.count(outcomes).row(s.version, time.Now().UTC().Format(time.DateOnly))
	}
	fmt.Print(table)
	return failed
}

// A server is the program of one.
type server struct{ path, version string }

// find returns the servers among the arguments, in the environment, or on PATH. An error names
// the value that is wrong.
func find(args []string, env string) (servers []server, err error) {
	source := "argument"
	if len(args) == 0 {
		source, args = envServers, filepath.SplitList(env)
	}
	if len(args) == 0 {
		for _, name := range []string{"redis-server", "valkey-server"} {
			if path, err := exec.LookPath(name); err == nil {
				args = append(args, path)
			}
		}
	}
	for _, arg := range args {
		s, err := ask(arg)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", source, arg, err)
		}
		servers = append(servers, s)
	}
	if len(servers) == 0 {
		return nil, errors.New("no server: neither arguments nor " + envServers + ", and none on PATH")
	}
	return servers, nil
}

var answer = regexp.MustCompile(`^((?:Redis|Valkey) )server v=(\S+)`)

// ask finds out the name and version of a server, such as "Redis 7.0.15".
func ask(program string) (server, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return server{}, err
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return server{}, fmt.Errorf("--version: %w", err)
	}
	m := answer.FindSubmatch(out)
	if m == nil {
		return server{}, fmt.Errorf("it is no Redis or Valkey: --version says %q", out)
	}
	path, err = filepath.Abs(path) // the tests run in other directories
	return server{path, string(m[1]) + string(m[2])}, err
}

// test runs the tests, which start the server themselves.
func (s server) test() (map[name]string, error) {
	cmd := exec.Command("go", "test", "-json", "-count=1", "-timeout=30m", "-skip=^TestAdapter$/^Miniredis$|^TestTopology$",
		"./backend", "./backend/rediscore", "./backend/goredis", "./backend/rueidis", "./backend/redigo")
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "DLOCK_TEST_REDIS_SERVER="+s.path, "DLOCK_TEST_REQUIRE_SERVER=1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	outcomes, err := collect(out, os.Stderr)
	return outcomes, cmp.Or(cmd.Wait(), err)
}
