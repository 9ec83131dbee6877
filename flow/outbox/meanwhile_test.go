package outbox_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// testBuriedMeanwhile: what a relay puts behind a key that waited, and that an operator
// has helped on just then, does not wait for ever.
func testBuriedMeanwhile(t *testing.T, db *databases.DB) {
	setSlices(t, db, 1)
	add := func(messages ...driver.Message) {
		t.Helper()
		db.Do(t, func(ctx context.Context, sql driver.SQL) error { return single.Add(ctx, sql, messages...) })
	}
	var took memory.Sink
	var once sync.Once
	arrived, goOn := make(chan struct{}), make(chan struct{})
	sink := outbox.Func(func(ctx context.Context, m driver.Message) error {
		switch m.ID {
		case "k/1":
			return poison("never")
		case "other":
			once.Do(func() { close(arrived); <-goOn })
		}
		return took.Publish(ctx, []driver.Message{m})[0]
	})
	r, err := outbox.NewRelay(db, single, sink, &outbox.Options{MinPause: time.Hour, MaxPause: time.Hour, MaxPoll: 20 * time.Millisecond})
	ok(t, err)
	serve(t, r, grant(1))
	add(keyed("k", 1, 1)...)
	testbed.Eventually(t, "the key waits", bound, func() bool { return count(t, db, `interlock_outbox_lane`) == 1 })

	add(append(keyed("k", 2, 2), driver.Message{ID: "other", Topic: "t"})...)
	select {
	case <-arrived: // the relay knows that the key of k/2 waits, and has not said so yet
	case <-time.After(bound):
		t.Fatal("the other message is not delivered")
	}
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		return single.MakeDeadLetter(ctx, sql, "k/1", "why", "bob")
	})
	close(goOn)
	testbed.Eventually(t, "what stood behind it is delivered", bound, func() bool {
		return slices.ContainsFunc(took.Messages(), func(m driver.Message) bool { return m.ID == "k/2" })
	})
	empty(t, db)
}
