package testbed

import (
	"os/exec"
	"testing"
)

// TestEtcdClusterElects checks that another member leads after the first is killed, which
// returns as a follower.
func TestEtcdClusterElects(t *testing.T) {
	t.Parallel()
	e := EtcdCluster(t, 3, "--unsafe-no-fsync")
	first := e.Leader()
	etcdctl(t, first, "put", "k", "v")
	first.Kill()
	next := e.Leader()
	if next == first {
		t.Fatal("the killed server leads")
	}
	first.Restart()
	e.mustServe(first)
	if got := etcdctl(t, first, "get", "--print-value-only", "k"); got != "v\n" {
		t.Errorf("after a restart: %q", got)
	}
}

func etcdctl(t *testing.T, s *Server, args ...string) string {
	t.Helper()
	cmd := exec.Command(Binary(t, "etcdctl"), append([]string{"--endpoints", s.URL()}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("etcdctl %v: %v", args, err)
	}
	return string(out)
}
