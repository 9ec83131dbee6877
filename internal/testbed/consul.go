package testbed

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
)

// Consul starts one Consul server, a cluster of one, and returns when it serves consistent reads,
// which takes about two seconds and 100 MB. Its shortest session is one second. extra is
// appended to its arguments.
func Consul(tb testing.TB, extra ...string) *Server {
	tb.Helper()
	return launch(tb, consulServer(Binary(tb, "consul"), "server-0", 1, nil, askConsul), extra)
}

// ConsulTLS starts [Consul] over HTTPS with client certificates. The PEM file ca has the authority
// that signs the certificates of clients and of the server, for 127.0.0.1.
func ConsulTLS(tb testing.TB, ca, cert, key string, extra ...string) *Server {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		tb.Fatal(err)
	}
	secure := &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}
	k := consulServer(Binary(tb, "consul"), "server-0", 1, nil, func(addr string) error {
		_, err := getConsulAt("https://"+addr, "/v1/kv/?keys&consistent", secure)
		return err
	})
	k.url = "https://%s"
	plain := k.command
	k.command = func(data string, ports []*port) []string {
		return append(plain(data, ports), "-http-port=-1", "-https-port="+ports[0].String(),
			fmt.Sprintf("-hcl=tls { defaults { ca_file = %q cert_file = %q key_file = %q } https { verify_incoming = true } }", ca, cert, key))
	}
	return launch(tb, k, extra)
}

// ConsulCluster starts n servers and returns when all of them serve. Restart may return
// before a server serves again: see [Ensemble.Leader].
func ConsulCluster(tb testing.TB, n int, extra ...string) *Ensemble {
	tb.Helper()
	path := Binary(tb, "consul")
	e := &Ensemble{tb: tb, serves: askConsul, leads: leadsConsul}
	alive := func(addr string) error { // a single server does not serve
		_, err := getConsul(addr, "/v1/status/leader")
		return err
	}
	for i := range n {
		e.Peers = append(e.Peers, launch(tb, consulServer(path, fmt.Sprint("server-", i), n, e, alive), extra))
	}
	for _, s := range e.Peers {
		e.mustServe(s)
	}
	return e
}

// consulServer returns one of n servers, which find each other by the ports of e if it is not nil.
func consulServer(path, node string, n int, e *Ensemble, ready func(addr string) error) kind {
	return kind{
		name: "consul", url: "http://%s", ports: 3, ready: ready,
		command: func(data string, ports []*port) []string {
			command := []string{path, "agent", "-server", fmt.Sprint("-bootstrap-expect=", n), "-node=" + node,
				"-data-dir=" + filepath.Join(data, "consul"), "-bind=127.0.0.1", "-client=127.0.0.1",
				"-http-port=" + ports[0].String(), "-server-port=" + ports[1].String(), fmt.Sprint("-serf-lan-port=", gossip(ports[2])),
				"-serf-wan-port=-1", "-dns-port=-1", "-grpc-port=-1", "-grpc-tls-port=-1", "-log-level=warn",
				`-hcl=session_ttl_min = "1s"`, "-hcl=performance { raft_multiplier = 1 }",
				"-hcl=limits { http_max_conns_per_client = 4096 }", // for all members that tests run at once on one server
				"-hcl=connect { enabled = false }", "-hcl=disable_update_check = true"}
			if e != nil && len(e.Peers) > 0 {
				command = append(command, fmt.Sprint("-retry-join=127.0.0.1:", gossip(e.Peers[0].ports[2])), "-retry-interval=200ms")
			}
			return command
		},
	}
}

// gossip returns the port for the servers' gossip, which uses UDP too. The UDP port with p's own
// number is p's reservation. No other port derives the same number.
func gossip(p *port) int { return p.number - (highest - lowest) }

// askConsul makes a consistent read, which needs a leader with a majority.
func askConsul(addr string) error {
	_, err := getConsul(addr, "/v1/kv/?keys&consistent")
	return err
}

// leadsConsul reports whether a server is the leader.
func leadsConsul(addr string) bool {
	body, err := getConsul(addr, "/v1/agent/self")
	var self struct {
		Stats struct{ Consul struct{ Leader string } }
	}
	return err == nil && json.Unmarshal(body, &self) == nil && self.Stats.Consul.Leader == "true" && askConsul(addr) == nil
}

func getConsul(addr, path string) ([]byte, error) { return getConsulAt("http://"+addr, path, nil) }

func getConsulAt(url, path string, secure *tls.Config) ([]byte, error) {
	return get(url+path, secure, http.StatusOK, http.StatusNotFound)
}
