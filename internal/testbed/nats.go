package testbed

import (
	"bufio"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// NATS starts one nats-server with JetStream and returns when it serves. It fsyncs every two
// minutes, which a killed process does not miss. extra are its arguments.
func NATS(tb testing.TB, extra ...string) *Server {
	tb.Helper()
	path := Binary(tb, "nats-server")
	return launch(tb, kind{
		name: "nats", url: "nats://%s", ports: 1,
		command: func(data string, ports []*port) []string {
			return []string{path, "--addr=127.0.0.1", "--port=" + ports[0].String(), "--jetstream", "--store_dir=" + filepath.Join(data, "jetstream")}
		},
		ready: askNATS,
	}, extra)
}

// askNATS waits for the greeting of a server, which it sends once JetStream has read its data.
func askNATS(addr string) error {
	conn, err := dial(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && !strings.Contains(line, `"jetstream":true`) {
		err = fmt.Errorf("it says %.200q", line)
	}
	return err
}
