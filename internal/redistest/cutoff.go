package redistest

import (
	"regexp"
	"testing"
	"time"
)

// cutOff parts the server from its replicas and from Sentinels, as a network that splits does: their
// connections end, and nobody can connect. Clients that are connected go on, and so does the bus of
// a Cluster. The function that it returns ends this.
func (s *Server) cutOff(t testing.TB) (rejoin func()) {
	t.Helper()
	c, err := s.connect()
	check(t, err)
	t.Cleanup(func() { c.Close() })
	check(t, c.SetDeadline(time.Time{}))
	do := func(args ...string) any {
		t.Helper()
		reply, err := c.do(args...)
		check(t, err)
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
