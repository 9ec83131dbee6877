package cli_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/choreography"
)

// TestSagaChoreographed lists the sagas of a tracker: all, those that are stalled, those of a state.
func TestSagaChoreographed(t *testing.T) {
	t.Parallel()
	program(t)
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		ls := func(code int, args ...string) string {
			t.Helper()
			text, _ := run(t, code, append([]string{"saga", "ls", "--choreographed", "--backend", shopURL(db)}, args...)...)
			return text
		}
		ls(78) // there is no table
		d := &choreography.Definition{Name: "order", Topic: "orders", Cancelled: "cancelled", Stalled: time.Hour, Steps: []choreography.Step{
			{Done: "placed", Undone: "closed"}, {Done: "charged", Undone: "refunded", Failed: "declined"}}}
		tracker := choreography.Tracker{Definition: d}
		db.Do(t, tracker.Create)
		for saga, events := range map[string]string{"1": "placed", "2": "placed charged", "3": "charged declined"} {
			for _, name := range strings.Fields(events) {
				m := d.Message(choreography.Event{Saga: saga, Name: name})
				db.Do(t, func(ctx context.Context, tx driver.SQL) error {
					return tracker.Observe(ctx, tx, driver.QueueMessage{Headers: m.Headers})
				})
			}
		}
		db.Exec(t, `update interlock_choreography set stalled = 1 where id = '1'`)
		text := ls(0)
		for _, want := range []string{"1   order  running", "2   order  completed", "3   order  contradictory", `"charged" and "declined" both happened`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s\nwithout %s", text, want)
			}
		}
		if text := ls(0, "--stalled"); !strings.Contains(text, "1   order  running") || !strings.Contains(text, "stalled") || strings.Contains(text, "completed") || strings.Contains(text, "contradictory") {
			t.Error(text)
		}
		if text := ls(0, "--state", "COMPLETED", "--type", "order", "-o", "json"); !strings.Contains(text, `"completed"`) || strings.Contains(text, `"running"`) {
			t.Error(text)
		}
		if text := ls(0, "--type", "refund", "-o", "json"); strings.Contains(text, "order") {
			t.Error(text)
		}
		ls(64, "--unfinished")
		ls(64, "--limit", "0")
	})
}
