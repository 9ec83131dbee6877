package testbed

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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

// redisCLI runs one command of redis-cli on a server.
func redisCLI(addr string, command ...string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	cmd := exec.Command("redis-cli", append([]string{"-h", host, "-p", port}, command...)...)
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err == nil && (strings.HasPrefix(text, "ERR ") || strings.HasPrefix(text, "(error)")) {
		err = fmt.Errorf("%v: %s", command, text)
	}
	return text, err
}

// Sentinel starts one Redis Sentinel that monitors the master under the name "main". It has the
// shortest time-outs that work: it fails over about a second after the end of the master. It
// discovers the master's replicas. extra are lines of its configuration.
func Sentinel(tb testing.TB, master *Server, extra ...string) *Server {
	tb.Helper()
	path := onPath(tb, "redis-server", "redis")
	host, number, _ := net.SplitHostPort(master.Addr())
	return launch(tb, kind{
		name:  "redis",
		url:   "redis://%s?master_set=main",
		ports: 1,
		ready: pingRedis,
		prepare: func(data string) error {
			lines := []string{"sentinel monitor main " + host + " " + number + " 1",
				"sentinel down-after-milliseconds main 500", "sentinel failover-timeout main 2000"}
			lines = append(lines, extra...)
			return os.WriteFile(filepath.Join(data, "sentinel.conf"), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
		},
		command: func(data string, ports []*port) []string {
			return []string{path, filepath.Join(data, "sentinel.conf"), "--sentinel", "--port", ports[0].String(), "--bind", "127.0.0.1"}
		},
	}, nil)
}

// Replica starts a Redis server that follows master and returns when it has its data.
func Replica(tb testing.TB, master *Server, extra ...string) *Server {
	tb.Helper()
	host, port, _ := net.SplitHostPort(master.Addr())
	s := Redis(tb, append([]string{"--replicaof", host, port, "--repl-ping-replica-period", "1"}, extra...)...)
	Eventually(tb, "the replica follows", bound, func() bool {
		text, err := redisCLI(s.Addr(), "INFO", "replication")
		return err == nil && strings.Contains(text, "master_link_status:up")
	})
	return s
}

// SentinelKnows waits until a sentinel knows the given number of usable replicas.
func SentinelKnows(tb testing.TB, sentinel *Server, replicas int) {
	tb.Helper()
	Eventually(tb, "the sentinel knows the replicas", bound, func() bool {
		text, err := redisCLI(sentinel.Addr(), "SENTINEL", "REPLICAS", "main")
		return err == nil && strings.Count(text, "slave-repl-offset") == replicas && strings.Contains(text, "\nok\n")
	})
}
