package faultproxy

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// A port is one that nobody else listens on, also while the Proxy does not. Ports are
// from the range of package redistest, and claimed as it claims its own: with the UDP
// port of the same number. They are none that common systems take for outgoing
// connections, or a client that redials a Proxy that refuses could be connected to
// itself.
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
