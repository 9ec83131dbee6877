package zookeeper

import (
	"strconv"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const patience = testbed.Patience

type (
	request = drivertest.Caller
	outcome = drivertest.Outcome
)

var (
	demand, mustAcquire, mustRelease = drivertest.Ask, drivertest.Acquire, drivertest.Release
	enqueue, bounded                 = drivertest.Wait, testbed.Bounded
)

// count reads one of the server's own counters.
func count(t testing.TB, server *testbed.Server, name string) int {
	t.Helper()
	report, err := testbed.FourLetterWord(server.Addr(), "mntr")
	testbed.OK(t, err)
	for line := range strings.Lines(report) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), name+"\t"); found {
			n, err := strconv.Atoi(value)
			testbed.OK(t, err)
			return n
		}
	}
	t.Fatalf("the server does not count %s", name)
	return 0
}

// removeTree deletes a node and all below it, like an operator.
func removeTree(t testing.TB, conn *zk.Conn, path string) {
	t.Helper()
	if err := remove(conn, path); err != nil {
		t.Fatalf("delete %s: %v", path, err)
	}
}
