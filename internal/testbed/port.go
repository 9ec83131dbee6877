package testbed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// port is a TCP port of 127.0.0.1 that no other testbed chooses until it is
// freed.
type port struct {
	number int
	claim  net.PacketConn
}

// The ports are below those that systems assign to outgoing connections (from 32768 on Linux,
// 49152 elsewhere). A port in that range could be taken while its server is down. Even a client
// that reconnects to it could take it, and be connected to itself.
const lowest, highest = 20000, 32700

// takePort finds a free port. It reserves the UDP port of the same number until free,
// which excludes other test processes. A server needs the TCP port only while it
// runs.
func takePort() (*port, error) {
	var failures []error
	for range 100 {
		n := lowest + rand.IntN(highest-lowest)
		p, err := tryPort(n)
		if err == nil {
			return p, nil
		}
		failures = append(failures, err)
	}
	return nil, fmt.Errorf("find a free port on 127.0.0.1: %w", errors.Join(failures...))
}

// reserve takes a port until the end of the test.
func reserve(tb testing.TB, server string) *port {
	tb.Helper()
	p, err := takePort()
	if err != nil {
		tb.Fatalf("%s: %v", server, err)
	}
	tb.Cleanup(p.free)
	return p
}

func tryPort(n int) (*port, error) {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(n))
	claim, err := net.ListenPacket("udp4", addr)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		claim.Close()
		return nil, err
	}
	l.Close()
	return &port{n, claim}, nil
}

func (p *port) free() { p.claim.Close() }

func (p *port) String() string { return strconv.Itoa(p.number) }

func (p *port) addr() string { return net.JoinHostPort("127.0.0.1", p.String()) }
