package zookeeper

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestBaseIsPinned: a session whose clock is ahead raises the base, and earlier sessions continue
// above it.
func TestBaseIsPinned(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	old := open(t, &Options{Servers: []string{server.Addr()}})
	waiting := demand("n", "of before")
	holder := demand("n", "holder")
	last := mustAcquire(t, old, holder).Token
	done := enqueue(t, old, waiting)
	ahead := open(t, &Options{Servers: []string{server.Addr()}, Now: func() time.Time { return time.Now().Add(time.Hour) }})
	behind := open(t, &Options{Servers: []string{server.Addr()}, Now: func() time.Time { return time.Now().Add(-time.Hour) }})
	mustRelease(t, old, holder)
	o := testbed.Receive(t, done, "the waiter from before the raise")
	if o.Err != nil || o.Token <= last {
		t.Fatalf("token %d after %d, %v", o.Token, last, o.Err)
	}
	last = o.Token
	mustRelease(t, old, waiting)
	for i, d := range []*Driver{ahead, old, behind, ahead, behind, old} {
		r := demand("n", strings.Repeat("x", i+1))
		g := mustAcquire(t, d, r)
		if g.Token <= last {
			t.Fatalf("step %d: token %d after %d", i, g.Token, last)
		}
		last = g.Token
		mustRelease(t, d, r)
	}
	if floor := interlock.CounterAt(time.Now().Add(time.Hour - time.Minute)); last.Counter() < floor {
		t.Fatalf("the counter %d is not that of the clock that is ahead, %d", last.Counter(), floor)
	}
}

// TestDamagedBase: an invalid base yields no token, and a deleted one is raised again, above the
// former one.
func TestDamagedBase(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	operator := dial(t, server.Addr())
	d := open(t, &Options{Servers: []string{server.Addr()}})
	last := mustAcquire(t, d, demand("n", "before")).Token
	mustRelease(t, d, demand("n", "before"))
	const base = "/interlock/interlock.base"
	removeTree(t, operator, base)
	if g := mustAcquire(t, d, demand("n", "deleted")); g.Token <= last {
		t.Fatalf("token %d after %d", g.Token, last)
	}
	mustRelease(t, d, demand("n", "deleted"))
	for _, bad := range []string{"nonsense", `{"base":2251799813685247,"anchor":1}`, `{"base":2251799813685248,"anchor":1}`} { // at the end
		_, err := operator.Set(base, []byte(bad), -1)
		testbed.OK(t, err)
		r := demand("n", "of "+bad)
		if _, err := d.Acquire(bounded(t), r.Request); interlock.Kind(err) != interlock.Definite {
			t.Fatalf("with %s: %v", bad, err)
		}
		if data, _, err := operator.Get(base); err != nil || !strings.HasPrefix(string(data), strings.TrimSuffix(bad, "}")) {
			t.Fatalf("it was replaced by %s, %v", data, err)
		}
		mustRelease(t, d, r)
	}
	if list, _, err := operator.Children("/interlock/n"); err == nil && len(list) > 0 {
		t.Fatalf("left behind: %q", list)
	}
}

// TestBreakOfAForeignHolder works like any other, and reports the holder.
func TestBreakOfAForeignHolder(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	d := open(t, &Options{Servers: []string{server.Addr()}})
	testbed.OK(t, zk.NewLock(dial(t, server.Addr()), "/interlock/n", zk.WorldACL(zk.PermAll)).LockWithData([]byte("host 7")))
	state, err := d.Lock(t.Context(), "n")
	if err != nil || state.Holder == nil || !state.Holder.Foreign || !strings.HasSuffix(state.Holder.Owner, " (host 7)") {
		t.Fatalf("%+v, %v", state.Holder, err)
	}
	waiter := demand("n", "us")
	done := enqueue(t, d, waiter)
	b := driver.Break{Name: "n", Owner: state.Holder.Owner, Reason: "it is gone", By: "me"}
	if record, ok, err := d.Break(t.Context(), b); err != nil || !ok || record.Break != b {
		t.Fatalf("%+v, %v, %v", record, ok, err)
	}
	if o := testbed.Receive(t, done, "the next one"); o.Err != nil {
		t.Fatal(o.Err)
	}
	if _, ok, err := d.Break(t.Context(), b); ok || err != nil {
		t.Fatalf("broken again: %v, %v", ok, err)
	}
}

func TestImpossibleOptions(t *testing.T) {
	t.Parallel()
	one := []string{"127.0.0.1:1"}
	for _, o := range []*Options{
		nil, {}, {Servers: one, TTL: time.Millisecond}, {Servers: one, TTL: 48 * time.Hour}, {Servers: one, Root: "x"},
		{Servers: one, Root: "/"}, {Servers: one, Root: "/x/"}, {Servers: one, Root: "/zookeeper"},
	} {
		if _, err := Open(t.Context(), o); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%+v: %v", o, err)
		}
	}
	began := time.Now()
	_, err := Open(t.Context(), &Options{Servers: one, TTL: 500 * time.Millisecond})
	if interlock.Kind(err) != interlock.Retryable || !errors.Is(err, errSlow) || time.Since(began) > patience {
		t.Errorf("without a server: %v after %v", err, time.Since(began))
	}
}
