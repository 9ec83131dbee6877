package testbed

import (
	"slices"
	"strings"
	"testing"
)

// What was written is there after a kill, and gone after a wipe.
func TestZooKeeperKeepsItsAddress(t *testing.T) {
	t.Parallel()
	s := ZooKeeper(t)
	addr := s.Addr()
	s.Kill()
	if serving(addr) == nil {
		t.Fatal("a killed server answers")
	}
	s.Restart()
	s.Wipe()
	if err := serving(addr); err != nil || s.Addr() != addr {
		t.Fatalf("after all: %v, at %s instead of %s", err, s.Addr(), addr)
	}
}

// An ensemble goes on without its leader, under another one.
func TestZooKeeperEnsembleElects(t *testing.T) {
	t.Parallel()
	e := ZooKeeperEnsemble(t, 3)
	first := e.Leader()
	first.Kill()
	next := e.Leader()
	if next == first {
		t.Fatal("the killed one leads")
	}
	first.Restart()
	e.mustServe(first)
	answer, err := FourLetterWord(first.Addr(), "srvr")
	if err != nil || !strings.Contains(answer, "Mode: follower") {
		t.Fatalf("the old leader: %q, %v", answer, err)
	}
	if addrs := e.Addrs(); len(addrs) != 3 || !slices.Contains(addrs, first.Addr()) {
		t.Fatalf("addresses %q", addrs)
	}
}
