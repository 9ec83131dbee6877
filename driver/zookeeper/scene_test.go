package zookeeper

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const patience = 20 * time.Second

// request is one owner's, with its events on channels.
type request struct {
	driver.Request
	waiting chan driver.Place
	lost    chan error
}

func demand(lock, owner string) request {
	r := request{
		Request: driver.Request{Name: lock, Owner: owner},
		waiting: make(chan driver.Place, 100), // more than any test hears
		lost:    make(chan error, 10),
	}
	r.Events = driver.Events{
		Waiting: func(p driver.Place) { r.waiting <- p },
		Lost:    func(cause error) { r.lost <- cause },
	}
	return r
}

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func mustAcquire(t testing.TB, d *Driver, r request) driver.Grant {
	t.Helper()
	g, err := d.Acquire(bounded(t), r.Request)
	if err != nil {
		t.Fatalf("acquire %q as %s: %v", r.Name, r.Owner, err)
	}
	return g
}

func mustRelease(t testing.TB, d *Driver, r request) {
	t.Helper()
	if err := d.Release(bounded(t), r.Name, r.Owner); err != nil {
		t.Fatalf("release %q as %s: %v", r.Name, r.Owner, err)
	}
}

type outcome struct {
	driver.Grant
	err error
}

// enqueue acquires in the background and returns once it stands in line.
func enqueue(t testing.TB, d *Driver, r request) <-chan outcome {
	t.Helper()
	done := make(chan outcome, 1)
	ctx := bounded(t)
	go func() {
		g, err := d.Acquire(ctx, r.Request)
		done <- outcome{g, err}
	}()
	receive(t, r.waiting, "word of waiting")
	return done
}

func receive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: nothing within %v", what, patience)
		panic("unreachable")
	}
}

// count reads one of the server's own counters.
func count(t testing.TB, server *testbed.Server, name string) int {
	t.Helper()
	report, err := testbed.FourLetterWord(server.Addr(), "mntr")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(report) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), name+"\t"); found {
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("the server does not count %s", name)
	return 0
}

// removeTree deletes a node and all below it, as an operator would.
func removeTree(t testing.TB, conn *zk.Conn, path string) {
	t.Helper()
	if err := remove(conn, path); err != nil {
		t.Fatalf("delete %s: %v", path, err)
	}
}
