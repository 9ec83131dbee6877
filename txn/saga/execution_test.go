package saga

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/journal"
)

// executionOf returns the execution of a begun saga of a definition, by a new owner.
func executionOf(t *testing.T, d Defined, entries ...journal.Entry) *execution {
	t.Helper()
	entries = append([]journal.Entry{begin([]byte(`"in"`), time.Time{}, time.Time{}, false)}, entries...)
	c, err := newExecution(d.defined(), driver.Head{Transaction: "1"}, entries, false)
	ok(t, err)
	t.Cleanup(c.close)
	return c
}

// TestRecordIsJSON: a record that could not be read again is not written.
func TestRecordIsJSON(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it was not rejected")
		}
	}()
	record(recordRetry, "a", note{Input: json.RawMessage("{")})
}

// TestCourseOfWhatCannotFollow: every method reports the bug, and no action follows from it.
func TestCourseOfWhatCannotFollow(t *testing.T) {
	g := &target{}
	d := Define("order", g.undoable("a"), Sleep[string]("w", time.Hour))
	for name, next := range map[string]func(c *execution) (action, error){
		"a step is sent": func(c *execution) (action, error) { m, _, err := c.nextStage(began, c.plan.fixed); return m, err },
		"a wait is sent": func(c *execution) (action, error) { m, _, err := c.nextStage(began, c.plan.fixed[1:]); return m, err },
		"a step is left": func(c *execution) (action, error) {
			return c.park(began, began.Add(time.Hour), []*progress{{key: "a"}})
		},
		"a wait has ended": func(c *execution) (action, error) {
			m, _, err := c.sleep(began.Add(2*time.Hour), c.plan.fixed[1])
			return m, err
		},
		"nothing is undone": func(c *execution) (action, error) { c.m.steps = nil; return c.backward(began) },
	} {
		c := executionOf(t, d)
		c.m.state = Succeeded
		c.trials["a"] = &attempts{err: errNetwork}
		if name == "a wait has ended" {
			c.m.steps = []progress{{key: "w", wait: true, until: began}}
		}
		m, err := next(c)
		if wantKind(t, err, interlock.Bug, errOrder); len(m.calls) > 0 || len(c.pending) > 0 {
			t.Errorf("%s: %+v", name, m)
		}
	}
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
