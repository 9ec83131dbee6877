package testbed

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Etcd starts one etcd node with a fast election and returns when it serves
// linearizable reads. Its shortest lease is one second. extra is appended to its
// arguments: "--unsafe-no-fsync" trades durability for speed.
func Etcd(tb testing.TB, extra ...string) *Server {
	tb.Helper()
	return launch(tb, oneEtcd(tb, "http", askEtcd), extra)
}

// EtcdTLS starts [Etcd] with client certificates. The PEM file ca has the authority that
// signs the certificates of clients and of the server, for 127.0.0.1.
func EtcdTLS(tb testing.TB, ca, cert, key string) *Server {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		tb.Fatal(err)
	}
	ask := func(addr string) error {
		return askHealth("https://"+addr, &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true})
	}
	return launch(tb, oneEtcd(tb, "https", ask), []string{"--cert-file=" + cert, "--key-file=" + key, "--trusted-ca-file=" + ca, "--client-cert-auth"})
}

// oneEtcd returns a node with the given URL scheme for clients.
func oneEtcd(tb testing.TB, scheme string, ready func(addr string) error) kind {
	path := Binary(tb, "etcd")
	return kind{
		name:  "etcd",
		url:   scheme + "://%s",
		ports: 2,
		ready: ready,
		command: func(data string, ports []*port) []string {
			peer := "http://" + ports[1].addr()
			return append(member(path, "testbed", data, scheme+"://"+ports[0].addr(), peer), "--initial-cluster=testbed="+peer,
				// Each heartbeat costs 0.2 ms of processor time, and a start takes up to an election timeout.
				"--heartbeat-interval=50", "--election-timeout=250")
		},
	}
}

// member returns the command of a member, without the flags that list the others.
func member(path, name, data, url, peer string) []string {
	return []string{path, "--name=" + name, "--data-dir=" + filepath.Join(data, "etcd"),
		"--listen-client-urls=" + url, "--advertise-client-urls=" + url,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer}
}

// EtcdCluster starts n members and returns when all of them serve. Restart may return before
// a member serves again: see [Ensemble.Leader].
func EtcdCluster(tb testing.TB, n int, extra ...string) *Ensemble {
	tb.Helper()
	path := Binary(tb, "etcd")
	var peers, all []string
	for i := range n {
		peers = append(peers, "http://"+reserve(tb, "etcd").addr())
		all = append(all, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	e := &Ensemble{tb: tb, serves: askEtcd, leads: leadsEtcd}
	for i, peer := range peers {
		e.Peers = append(e.Peers, launch(tb, kind{
			name:  "etcd",
			url:   "http://%s",
			ports: 1,
			ready: func(string) error { return nil }, // a single member does not serve
			command: func(data string, ports []*port) []string {
				return append(member(path, fmt.Sprint("m", i), data, "http://"+ports[0].addr(), peer), "--initial-cluster="+strings.Join(all, ","),
					"--heartbeat-interval=50", "--election-timeout=500")
			},
		}, extra))
	}
	e.Wait()
	return e
}

// leadsEtcd reports whether a member is the leader by its own status.
func leadsEtcd(addr string) bool {
	request, err := http.NewRequest(http.MethodPost, "http://"+addr+"/v3/maintenance/status", strings.NewReader("{}"))
	if err != nil {
		return false
	}
	var status struct {
		Header struct {
			Member string `json:"member_id"`
		}
		Leader string
	}
	body, err := send(request, time.Second, nil, http.StatusOK)
	return err == nil && json.Unmarshal(body, &status) == nil && status.Leader != "" && status.Leader == status.Header.Member
}

// askEtcd requests /health, which makes a linearizable read and so needs a leader.
func askEtcd(addr string) error { return askHealth("http://"+addr, nil) }

func askHealth(url string, c *tls.Config) error {
	_, err := get(url+"/health", c, http.StatusOK)
	return err
}
