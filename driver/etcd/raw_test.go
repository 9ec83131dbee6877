package etcd

import (
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestRawNamesNest: the documented cost of Options.RawNames, which escaping avoids.
func TestRawNamesNest(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	raw := open(t, dial(t, server.Addr()), &Options{RawNames: true})
	inner := ask("a/b", "inner")
	mustAcquire(t, raw, inner)
	outer := ask("a", "outer")
	done := queue(t, raw, outer)
	mustRelease(t, raw, inner)
	if o := testbed.Receive(t, done, "the outer lock"); o.Err != nil {
		t.Fatal(o.Err)
	}

	escaped := open(t, dial(t, server.Addr()), &Options{Prefix: "ns/"})
	mustAcquire(t, escaped, ask("a/b", "inner"))
	outer = ask("a", "outer")
	outer.NoWait = true
	mustAcquire(t, escaped, outer)
}
