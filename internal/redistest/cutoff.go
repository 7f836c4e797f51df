package redistest

import (
	"bufio"
	"net"
	"regexp"
	"testing"
	"time"
)

// cutOff parts the server from its replicas and from Sentinels, as a network that splits does: their
// connections end, and nobody can connect. Clients that are connected go on, and so does the bus of
// a Cluster. The function that it returns ends this.
func (s *Server) cutOff(t testing.TB) (rejoin func()) {
	t.Helper()
	nc, err := net.DialTimeout("tcp4", s.Addr(), s.limit)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	t.Cleanup(func() { nc.Close() })
	r := bufio.NewReader(nc)
	do := func(args ...string) any {
		t.Helper()
		nc.SetDeadline(time.Now().Add(s.limit))
		reply, err := roundTrip(nc, r, args)
		if failure, ok := reply.(Error); ok {
			err = failure
		}
		if err != nil {
			t.Fatalf("redistest: %q at %s: %v", args, s.Addr(), err)
		}
		return reply
	}
	limit := do("CONFIG", "GET", "maxclients").([]any)[1].(string)
	do("CONFIG", "SET", "maxclients", "1")
	for _, m := range peer.FindAllStringSubmatch(do("CLIENT", "LIST").(string), -1) {
		do("CLIENT", "KILL", "ID", m[1])
	}
	return func() {
		t.Helper()
		do("CONFIG", "SET", "maxclients", limit)
	}
}

// peer matches the line of CLIENT LIST of a replica or a Sentinel.
var peer = regexp.MustCompile(`(?m)^id=(\d+) .*( name=sentinel-| flags=S)`)
