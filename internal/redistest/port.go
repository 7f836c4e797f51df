package redistest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// Servers listen on ports from 12000 up, and their cluster bus on ports 10000 higher. The two
// ranges do not overlap each other, nor the usual range for outgoing connections. In that range, a
// client that redials a dead server could be given the server's own port, and be connected to
// itself.
const (
	firstPort = 12000
	ports     = 10000
	busOffset = 10000 // fixed by Redis
)

var errPortTaken = errors.New("its port is taken")

// claimPort finds a port that is free, with a free bus port. Until the claim is closed, no other
// test in any process gets these ports, even while the server is down. The claim is the UDP port
// of the same number, which the kernel gives to one process only, and frees when that process
// dies.
func claimPort() (claim net.PacketConn, port int, err error) {
	for range ports {
		port = firstPort + rand.IntN(ports)
		if claim, err = net.ListenPacket("udp4", address(port)); err != nil {
			continue
		}
		if err = errors.Join(tryPort(port), tryPort(port+busOffset)); err == nil {
			return claim, port, nil
		}
		claim.Close()
	}
	return nil, 0, err
}

func tryPort(port int) error {
	l, err := net.Listen("tcp4", address(port))
	if err != nil {
		return err
	}
	return l.Close()
}

func address(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
