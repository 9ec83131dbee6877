package zookeeper

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
)

// contend is a process that acquires a lock, and keeps it until it is killed. Its
// arguments are the server, the name and its owner.
func contend(ctx context.Context, _ *crash.Points, args []string) error {
	d, err := Open(ctx, &Options{Servers: args[:1], TTL: suiteTTL})
	if err != nil {
		return err
	}
	_, err = d.Acquire(ctx, driver.Request{Name: args[1], Owner: args[2], Events: driver.Events{
		Waiting: func(driver.Place) { fmt.Println("waits") }}})
	if err != nil {
		return err
	}
	fmt.Println("holds")
	select {}
}

// TestKilledHolderAndWaiters: the waiter after them is served at most a session and a second
// later. The test also measures how long the server takes to end a session, on another
// process that is killed with them.
func TestKilledHolderAndWaiters(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	start := func(name, owner, state string) *testbed.Process {
		p := crash.Start(t, "contender", 0, server.Addr(), name, owner)
		if line := testbed.Receive(t, p.Stdout(), "word of "+owner); line != state {
			t.Fatalf("%s %s", owner, line)
		}
		return p
	}
	processes := []*testbed.Process{start("n", "holder", "holds"), start("n", "second", "waits"),
		start("n", "third", "waits"), start("control", "control", "holds")}
	done := enqueue(t, open(t, &Options{Servers: []string{server.Addr()}, TTL: suiteTTL}), demand("n", "next"))
	operator := dial(t, server.Addr())
	nodes, _, err := operator.Children("/interlock/control")
	if err != nil || len(nodes) != 1 {
		t.Fatal(nodes, err)
	}
	_, _, control, err := operator.ExistsW("/interlock/control/" + nodes[0])
	testbed.OK(t, err)
	for _, p := range processes {
		p.Kill()
	}
	ended := make(chan time.Time, 1)
	go func() {
		if ev := <-control; ev.Type == zk.EventNodeDeleted {
			ended <- time.Now()
		}
	}()
	if o := testbed.Receive(t, done, "the grant"); o.Err != nil {
		t.Fatal(o.Err)
	}
	granted := time.Now()
	// the last sign of life of that process may be a third of a session older
	if late := granted.Sub(testbed.Receive(t, ended, "the end of a session")); late > suiteTTL/3+time.Second {
		t.Fatalf("served %v after a session had ended", late)
	}
}
