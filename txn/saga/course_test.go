package saga

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// courseOf is the course of a saga of a definition that was begun, by an heir.
func courseOf(t *testing.T, d Defined, entries ...journal.Entry) *course {
	t.Helper()
	entries = append([]journal.Entry{begin([]byte(`"in"`), time.Time{})}, entries...)
	c, err := newCourse(d.defined(), driver.Head{Transaction: "1"}, entries, false)
	ok(t, err)
	t.Cleanup(c.close)
	return c
}

// TestNoteOfWhatCannotFollow is a mistake of this package: it is told as one, and nothing
// of it is pending or in the machine.
func TestNoteOfWhatCannotFollow(t *testing.T) {
	c := courseOf(t, Define("order", (&target{}).undoable("a")))
	err := c.note(began, true, letters["sent a"], letters["end"])
	if wantKind(t, err, interlock.Bug, errOrder); !strings.Contains(err.Error(), `drive saga "1": record end`) {
		t.Error(err)
	}
	if len(c.pending) != 0 || c.forced || c.m.find("a") != nil || c.idle["a"] {
		t.Errorf("%+v", c)
	}
}

// TestDamagedSaga: a saga whose records make no sense is told of, and left alone.
func TestDamagedSaga(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var failed []error
		hooks := &observe.Coordinator{Failed: func(e observe.CoordinatorFailed) { failed = append(failed, e.Err) }}
		r := idle(t, &watched{Journal: memory.NewJournal()}, &settings{Options: coordinator.Options{Recheck: time.Hour, Hooks: hooks}}, Define("order", (&target{}).undoable("a")))
		_, err := r.coordinator.Journal().Begin(t.Context(), "1", "saga:order", time.Now(), letters["end"])
		ok(t, err)
		r.serve(t, 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(failed) == 0 || interlock.Kind(failed[0]) != interlock.Bug || !strings.Contains(failed[0].Error(), `drive saga "1": record end "" in state ""`) {
			t.Errorf("told %v", failed)
		}
		same(t, "records", r.records(t, "1"), "end:")
	})
}
