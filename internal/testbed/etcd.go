package testbed

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
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
			client, peer := "http://"+ports[0].addr(), "http://"+ports[1].addr()
			return []string{path, "--name=testbed", "--data-dir=" + filepath.Join(data, "etcd"),
				"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
				"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
				"--initial-cluster=testbed=" + peer,
				"--heartbeat-interval=10", "--election-timeout=100"}
		},
	}, extra)
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
