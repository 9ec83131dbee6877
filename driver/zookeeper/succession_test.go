package zookeeper

import (
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestReplacedLockNode: numbers start again below a new node, so the number that follows our last
// one does not prove that a contender is first.
func TestReplacedLockNode(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	d, other := open(t, &Options{Servers: []string{server.Addr()}}), open(t, &Options{Servers: []string{server.Addr()}})
	operator := dial(t, server.Addr())
	for name, turns := range map[string]int{"unwatched": 1, "watched": 3} {
		ours, theirs := demand(name, "ours"), demand(name, "theirs")
		for range turns {
			mustAcquire(t, d, ours)
			mustRelease(t, d, ours)
		}
		removeTree(t, operator, "/interlock/"+name)
		for range turns - 1 {
			mustAcquire(t, other, theirs)
			mustRelease(t, other, theirs)
		}
		mustAcquire(t, other, theirs) // has the number of our last node
		done := enqueue(t, d, ours)
		mustRelease(t, other, theirs)
		testbed.OK(t, testbed.Receive(t, done, "the waiter").Err)
		mustRelease(t, d, ours)
	}
}

// TestOtherNodesBetween: the succession of one process ends when another one has a turn.
func TestOtherNodesBetween(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t)
	d, other := open(t, &Options{Servers: []string{server.Addr()}}), open(t, &Options{Servers: []string{server.Addr()}})
	ours, theirs := demand("n", "ours"), demand("n", "theirs")
	for range 3 {
		for range 3 {
			mustAcquire(t, d, ours)
			mustRelease(t, d, ours)
		}
		mustAcquire(t, other, theirs)
		done := enqueue(t, d, ours)
		mustRelease(t, other, theirs)
		testbed.OK(t, testbed.Receive(t, done, "the waiter").Err)
		mustRelease(t, d, ours)
	}
}
