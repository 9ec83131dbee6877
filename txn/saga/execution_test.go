package saga

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestRecordIsJSON: a record that could not be read again is not written.
func TestRecordIsJSON(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it was not rejected")
		}
	}()
	record(recordRetry, "a", note{Input: json.RawMessage("{")})
}

// TestAddedToAnAnsweredStage: a step that a new definition adds to a finished stage is
// reported; one in the last answered stage, or before an unanswered one, is not.
func TestAddedToAnAnsweredStage(t *testing.T) {
	g := &target{}
	a, b, added := g.undoable("a"), g.undoable("b"), g.undoable("new")
	entries := []journal.Entry{letters["begin"], letters["sent a"], record(recordSent, "b", sending{Stage: 2, Undo: "unb"}), letters["done a"]}
	answered := append(entries[:4:4], journal.Entry{Kind: recordDone, Step: "b", Data: []byte("1")})
	for name, c := range map[string]struct {
		d       Definition[string]
		entries []journal.Entry
		says    string
	}{
		"in a stage that is over":   {Define("order", Parallel[string](a, added), b, g.act("p").Pivot()), answered, `transaction "1": step "new": the definition of "order" has it before "b", which was answered without it` + useOldDefinition},
		"in the last stage":         {Define("order", a, Parallel[string](b, added), g.act("p").Pivot()), answered, ""},
		"before what is called yet": {Define("order", Parallel[string](a, added), b), entries, ""},
		"in a saga that is aborted": {Define("order", Parallel[string](a, added), b), append(entries[:4:4], record(recordFailed, "b", why{})), ""},
	} {
		execution, err := newExecution(c.d.plan, driver.Head{Transaction: "1"}, c.entries, false)
		if got := ""; err != nil {
			if got = err.Error(); got != c.says {
				t.Errorf("%s: %s", name, got)
			}
			wantKind(t, err, interlock.Bug, ErrMismatch)
		} else if c.says != "" {
			t.Errorf("%s: it is not reported", name)
		}
		execution.close()
	}
}

// TestRecordsWithoutACall: a saga whose OnEnd is gone, or crashes each owner, ends; and one that was
// claimed before its start has a record with its due time.
func TestRecordsWithoutACall(t *testing.T) {
	p := Define("order", (&target{}).undoable("a")).plan
	over := []journal.Entry{begin([]byte(`"in"`), time.Time{}, time.Time{}, true), {Kind: recordDecide, Step: decideCommit, Data: []byte("{}")}, {Kind: recordFinished}}
	later := []journal.Entry{begin([]byte(`"in"`), time.Time{}, began.Add(time.Hour), false)}
	next := func(c *execution) { _, err := c.next(began); ok(t, err) }
	for kind, s := range map[string]struct {
		entries []journal.Entry
		do      func(*execution)
	}{
		"no OnEnd: " + recordEnd:      {over, next},
		"OnEnd crashes: " + recordEnd: {over, func(c *execution) { c.takeOver(began, func(int) bool { return true }) }},
		"early: " + recordLater:       {later, next},
	} {
		c, err := newExecution(p, driver.Head{Transaction: "1", Claimed: true}, s.entries, false)
		ok(t, err)
		s.do(c)
		if c.close(); len(c.pending) != 1 || !strings.HasSuffix(kind, " "+c.pending[0].Kind) {
			t.Errorf("%s: it records %v", kind, c.pending)
		}
	}
}
