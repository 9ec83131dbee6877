package testbed

import (
	"bufio"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// NATS starts one nats-server with JetStream and returns when it serves. It fsyncs every two
// minutes, which a kill of the process does not need. extra is appended to its arguments.
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

// NATSCluster starts n servers with one JetStream, and returns when all are up to date with its
// leader. Restart may return before a server is up to date again: see [Ensemble.Wait]. See [NATS]
// for the rest.
func NATSCluster(tb testing.TB, n int) *Ensemble {
	tb.Helper()
	path := Binary(tb, "nats-server")
	var routes []string
	for range n {
		routes = append(routes, "nats://"+reserve(tb, "nats").addr())
	}
	monitors := map[string]string{}
	e := &Ensemble{tb: tb, serves: func(addr string) error {
		_, err := get("http://"+monitors[addr]+"/healthz", nil, http.StatusOK)
		return err
	}}
	for i, route := range routes {
		s := launch(tb, kind{
			name: "nats", url: "nats://%s", ports: 2,
			command: func(data string, ports []*port) []string {
				return []string{path, "--addr=127.0.0.1", "--port=" + ports[0].String(), "--http_port=" + ports[1].String(), "--name=" + fmt.Sprint("n", i),
					"--jetstream", "--store_dir=" + filepath.Join(data, "jetstream"), "--cluster_name=testbed", "--cluster=" + route, "--routes=" + strings.Join(routes, ",")}
			},
			ready: askNATS,
		}, nil)
		monitors[s.Addr()] = s.ports[1].addr()
		e.Peers = append(e.Peers, s)
	}
	e.Wait()
	return e
}

// askNATS waits for the greeting of a server, sent once JetStream has read its data.
func askNATS(addr string) error {
	conn, err := dial(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && !strings.Contains(line, `"jetstream":true`) {
		err = fmt.Errorf("the greeting is %.200q", line)
	}
	return err
}
