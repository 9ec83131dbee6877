package zookeeper

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
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

// TestRootOfAnOperator: no rights are needed above the root, if an operator has created it.
func TestRootOfAnOperator(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	operator := dial(t, server.Addr())
	for _, node := range []string{"/apps", "/apps/locks"} {
		_, err := operator.Create(node, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
		testbed.OK(t, err)
	}
	for _, node := range []string{"/apps", "/"} {
		_, err := operator.SetACL(node, zk.WorldACL(zk.PermRead), -1)
		testbed.OK(t, err)
	}
	d := open(t, &Options{Servers: []string{server.Addr()}, Root: "/apps/locks"})
	grant := mustAcquire(t, d, demand("n", "me"))
	testbed.OK(t, valuesAt(t, server.Addr(), "/apps/locks", nil).Put(t.Context(), "n", driver.Value{Token: grant.Token}))
	if _, err := Open(t.Context(), &Options{Servers: []string{server.Addr()}, Root: "/apps/others"}); interlock.Kind(err) != interlock.Definite || !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("a root that is missing: %v", err)
	}
}
