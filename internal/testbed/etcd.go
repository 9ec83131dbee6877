package testbed

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Etcd starts a single etcd node with a fast election and returns when it
// serves linearizable reads. Its shortest lease is one second. extra is
// appended to its arguments: "--unsafe-no-fsync" trades durability for speed.
func Etcd(tb testing.TB, extra ...string) *Server {
	tb.Helper()
	path := Binary(tb, "etcd")
	return launch(tb, kind{
		name:  "etcd",
		url:   "http://%s",
		ports: 2,
		ready: askEtcd,
		command: func(data string, ports []*port) []string {
			peer := "http://" + ports[1].addr()
			return append(member(path, "testbed", data, ports[0], peer), "--initial-cluster=testbed="+peer,
				"--heartbeat-interval=10", "--election-timeout=100")
		},
	}, extra)
}

// member is the command of a member, but for whom else there is.
func member(path, name, data string, client *port, peer string) []string {
	url := "http://" + client.addr()
	return []string{path, "--name=" + name, "--data-dir=" + filepath.Join(data, "etcd"),
		"--listen-client-urls=" + url, "--advertise-client-urls=" + url,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer}
}

// EtcdCluster starts n members and returns when all of them serve. A member that is
// restarted serves later than Restart returns: see [Ensemble.Leader].
func EtcdCluster(tb testing.TB, n int, extra ...string) *Ensemble {
	tb.Helper()
	path := Binary(tb, "etcd")
	var peers, all []string
	for i := range n {
		p, err := takePort()
		if err != nil {
			tb.Fatalf("etcd: %v", err)
		}
		tb.Cleanup(p.free)
		peers = append(peers, "http://"+p.addr())
		all = append(all, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	e := &Ensemble{tb: tb, serves: askEtcd, leads: leadsEtcd}
	for i, peer := range peers {
		e.Peers = append(e.Peers, launch(tb, kind{
			name:  "etcd",
			url:   "http://%s",
			ports: 1,
			ready: func(string) error { return nil }, // alone it does not serve
			command: func(data string, ports []*port) []string {
				return append(member(path, fmt.Sprint("m", i), data, ports[0], peer), "--initial-cluster="+strings.Join(all, ","),
					"--heartbeat-interval=50", "--election-timeout=500")
			},
		}, extra))
	}
	for _, s := range e.Peers {
		e.mustServe(s)
	}
	return e
}

// leadsEtcd asks a member whether it is the leader that it knows.
func leadsEtcd(addr string) bool {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Post("http://"+addr+"/v3/maintenance/status", "application/json", strings.NewReader("{}"))
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	var status struct {
		Header struct {
			Member string `json:"member_id"`
		}
		Leader string
	}
	err = json.NewDecoder(answer.Body).Decode(&status)
	return err == nil && status.Leader != "" && status.Leader == status.Header.Member
}

// askEtcd uses /health, which makes a linearizable read and so needs a leader.
func askEtcd(addr string) error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + addr + "/health")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("/health answered %s: %s", answer.Status, body)
	}
	return err
}
