package guarantees

import (
	"os"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// asserted are the tests that fail if a lock makes more requests than it should.
var asserted = []string{
	"driver/redis TestUncontendedCostsTwoRequests",
	"driver/redis TestHandOverCostsTwoRequests",
	"driver/redis TestThousandLocksRenewInFewRequests",
	"driver/redis TestQuorumCost",
	"driver/redis TestQueueCosts",
	"driver/redis TestQueueAllocations",
	"driver/etcd TestUncontendedCostsTwoRequests",
	"driver/etcd TestUncontendedAllocations",
	"driver/etcd TestCallsThatWaitShareARequest",
	"driver/etcd TestAppendCostsFewWrites",
	"driver/zookeeper TestUncontendedCostsTwoRequests",
	"driver/zookeeper TestCallsThatWaitShareARequest",
	"driver/postgres TestCostOfAnUncontendedLock",
	"driver/postgres TestCostOfManyLocks",
	"driver/postgres TestCostOfManyAtOnce",
	"driver/postgres TestCostOfManyRowsAtOnce",
	"driver/postgres TestCostOfAHandOver",
	"driver/postgres TestCostOfAHerd",
	"driver/postgres TestHeldLocksCostNothing",
	"driver/postgres TestAllocations",
	"driver/mysql TestCost",
	"driver/mysql TestCostOfManyAtOnce",
	"driver/mysql TestCostOfManyRowsAtOnce",
	"driver/mysql TestAllocations",
	"driver/mysql TestCostOfKeyValues",
	"txn/percolator TestCosts",
	"txn/percolator TestCostOfHotRecord",
	"driver/kube testUncontendedCostsTwoRequests",
	"driver/kube testWaitersCostNoRequests",
	"flow/queue TestAllocations",
	"flow/queue TestCosts",
	"flow/queue TestArrivalsOfReadyKeys",
	"flow/outbox TestReadCost",
	"driver/redis TestLimitAllocations",
	"flow/outbox TestIdleCost",
	"flow/outbox testCostOfAMessage",
	"driver/lanes TestAllocations",
	"internal/leasequeue TestAllocations",
	"driver/kafka TestArrivalAllocations",
	"driver/kafka TestCommitCost",
	"driver/consul testUncontendedCostsTwoRequests",
	"driver/consul testWaitersCostNoRequests",
	"driver/consul testHeldLocksCostOneForSixty",
	"txn/journal TestCostOfAppend",
	"txn/journal TestAllocations",
	"txn/journal TestAppendChangesNoIndex",
	"txn/journal TestGroupsAreLarge",
	"txn/coordinator TestBegunInServedShard",
	"txn/saga TestCosts",
	"txn/saga TestAllocations",
	"txn/branchhttp TestAllocations",
}

// TestCostsAreAsserted checks that these tests exist and that the page lists them.
func TestCostsAreAsserted(t *testing.T) {
	t.Parallel()
	tree := &tree{t: t, tests: map[string]map[string]string{}}
	for _, name := range asserted {
		if why := tree.refuses(Backend{}, name); why != "" {
			t.Errorf("%s: %s", name, why)
		}
	}
	if text, err := os.ReadFile(top + "docs/reference/performance.md"); err != nil || !strings.HasSuffix(string(text), assertedBy()) {
		t.Errorf("docs/reference/performance.md does not end with the tests that assert it (%v): %s", err, assertedBy())
	}
}

func assertedBy() string {
	var b strings.Builder
	b.WriteString("\nThe figures that must not grow are asserted by\n\n")
	for _, name := range asserted {
		b.WriteString("- " + shown([]string{name}) + "\n")
	}
	return b.String()
}

func acquire(t *testing.T, d driver.Fenced, name, owner string) {
	t.Helper()
	if _, err := d.Acquire(t.Context(), driver.Request{Name: name, Owner: owner}); err != nil {
		t.Fatal(err)
	}
}

func release(t *testing.T, d driver.Fenced, name, owner string) {
	t.Helper()
	testbed.OK(t, d.Release(t.Context(), name, owner))
}
