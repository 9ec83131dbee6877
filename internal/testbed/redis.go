package testbed

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// Redis starts redis-server without persistence and returns when it answers. extra is
// appended to its arguments: "--appendonly", "yes" keeps the data over a
// Restart.
func Redis(tb testing.TB, extra ...string) *Server {
	tb.Helper()
	return redisServer(tb, onPath(tb, "redis-server", "redis"), extra)
}

// Valkey starts a newer [Redis], which has WAITAOF.
func Valkey(tb testing.TB, extra ...string) *Server {
	tb.Helper()
	return redisServer(tb, Binary(tb, "valkey-server"), extra)
}

func redisServer(tb testing.TB, path string, extra []string) *Server {
	tb.Helper()
	return launch(tb, kind{
		name:  "redis",
		url:   "redis://%s",
		ports: 1,
		ready: pingRedis,
		command: func(data string, ports []*port) []string {
			return []string{path, "--port", ports[0].String(), "--bind", "127.0.0.1", "--dir", data,
				"--daemonize", "no", "--save", "", "--appendonly", "no"}
		},
	}, extra)
}

// pingRedis sends PING in the protocol itself. A server that is loading its data
// answers with an error. One that asks for a password is ready.
func pingRedis(addr string) error {
	conn, err := dial(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && answer != "+PONG\r\n" && !strings.HasPrefix(answer, "-NOAUTH ") {
		err = fmt.Errorf("PING answered %q", answer)
	}
	return err
}

// dial connects for one request, which must be answered within a second.
func dial(addr string) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(time.Second))
}
