package testbed

import (
	"strings"
	"testing"
)

// TestRedisClusterKeepsItsNodes over a restart of all, and loses its data when it is
// wiped.
func TestRedisClusterKeepsItsNodes(t *testing.T) {
	t.Parallel()
	c := RedisCluster(t, false)
	c.must(t, 0, "SET", "b", "1") // slot 3300
	c.Pause()
	c.Resume()
	if got := c.must(t, 0, "GET", "b"); got != "1" {
		t.Errorf("after a pause: %q", got)
	}
	c.Wipe()
	if got := c.must(t, 0, "GET", "b"); got != "" {
		t.Errorf("after a wipe: %q", got)
	}
	if got := c.must(t, 1, "GET", "b"); !strings.HasPrefix(got, "MOVED 3300 "+c.Addr()) {
		t.Errorf("another node after a wipe: %q", got)
	}
}
