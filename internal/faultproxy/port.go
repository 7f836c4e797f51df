package faultproxy

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// A port is a TCP port that no other test listens on, even while the Proxy does not listen. It is
// claimed like those of package redistest, from the same range: with the UDP port of the same
// number. That range is outside of the usual range for outgoing connections. Otherwise a client
// that redials a refusing Proxy could be connected to itself.
type port struct {
	addr     string
	claim    net.PacketConn
	listener net.Listener // the first one
}

const (
	firstPort = 12000
	ports     = 10000
)

func claimPort() (p *port, err error) {
	for range ports {
		addr := fmt.Sprintf("127.0.0.1:%d", firstPort+rand.IntN(ports))
		var claim net.PacketConn
		if claim, err = net.ListenPacket("udp4", addr); err != nil {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp4", addr); err == nil {
			return &port{addr, claim, l}, nil
		}
		claim.Close()
	}
	return nil, err
}

func (p *port) free() { p.claim.Close() }
