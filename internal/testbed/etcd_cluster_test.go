package testbed

import "testing"

// TestEtcdClusterElects another leader when the first is killed, which comes back as
// a follower.
func TestEtcdClusterElects(t *testing.T) {
	t.Parallel()
	e := EtcdCluster(t, 3, "--unsafe-no-fsync")
	first := e.Leader()
	etcdctl(t, first, "put", "k", "v")
	first.Kill()
	next := e.Leader()
	if next == first {
		t.Fatal("the killed one leads")
	}
	first.Restart()
	e.mustServe(first)
	if got := etcdctl(t, first, "get", "--print-value-only", "k"); got != "v\n" {
		t.Errorf("after a restart: %q", got)
	}
}
