// Package freeport finds TCP ports for tests that no other test listens on, even while nobody listens on them.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are from 12000 up. The bus of a Redis Cluster has ports 10000 higher. The two ranges do not overlap each other, nor
// the usual range for outgoing connections. In that range, a client that redials a dead server could be
// given the server's own port, and be connected to itself.
const (
	first = 12000
	ports = 10000
	bus   = 10000 // fixed by Redis
)

// Claim finds a port that is free, with a free port for the bus. Until the claim is closed, no other
// test in any process gets these ports. The claim is the UDP port
// of the same number, which the kernel gives to one process only, and frees when that process
// dies.
func Claim() (claim net.PacketConn, port int, err error) {
	for range ports {
		port = first + rand.IntN(ports)
		if claim, err = net.ListenPacket("udp4", Addr(port)); err != nil {
			continue
		}
		if err = errors.Join(try(port), try(port+bus)); err == nil {
			return claim, port, nil
		}
		claim.Close()
	}
	return nil, 0, err
}

func try(port int) error {
	l, err := net.Listen("tcp4", Addr(port))
	if err != nil {
		return err
	}
	return l.Close()
}

// Addr returns the address of a port on the loopback interface.
func Addr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
