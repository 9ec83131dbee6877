package zookeeper

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestNodesAreOnlyForThoseWhoMay: Options.ACL and Options.Auth apply to every node, also after the
// connection was replaced.
func TestNodesAreOnlyForThoseWhoMay(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	path := testbed.NewProxy(t, server.Addr())
	acl := zk.DigestACL(zk.PermAll, "us", "secret")
	auth := []Auth{{"digest", []byte("us:secret")}}
	var k keyhole
	d := open(t, &Options{Dial: k.dial, Servers: []string{path.Addr()}, ACL: acl, Auth: auth, TTL: 6 * time.Second})
	first := demand("n", "first")
	mustAcquire(t, d, first)
	k.reconnect(t, path, d)
	at, _ := d.Contender("n", "first")
	outsider := dial(t, server.Addr())
	for _, node := range []string{at.Path, "/interlock/n", "/interlock/interlock.base", "/interlock"} {
		if _, _, err := outsider.Get(node); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("an outsider reads %s: %v", node, err)
		}
	}
	mustRelease(t, d, first)
	second := demand("n", "second")
	mustAcquire(t, d, second)
	mustRelease(t, d, second)
	if _, err := Open(t.Context(), &Options{Servers: []string{server.Addr()}}); interlock.Kind(err) != interlock.Definite || !errors.Is(err, zk.ErrNoAuth) {
		t.Fatalf("without credentials: %v", err)
	}
}
