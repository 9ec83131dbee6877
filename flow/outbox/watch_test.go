package outbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestIdleCost: a relay that finds nothing sends one statement each MaxPoll, whatever the number
// of slices, and those of each slice once in sixty times that; also while a call of the sink lasts.
func TestIdleCost(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, messages := range map[string]int{"nothing waits": 0, "a message is under way": 1} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				testIdleCost(t, open(t), messages)
			})
		}
	})
}

func testIdleCost(t *testing.T, db *databases.DB, messages int) {
	const (
		slices  = outbox.DefaultSlices
		each    = 3 // statements in which a service looks
		maxPoll = 10 * time.Millisecond
	)
	db.Do(t, anyNumber.Create)
	add(t, db, keyed("k", 1, messages)...)
	c := &databases.Counted{BeginnerAt: db}
	var calls atomic.Int64
	sink := outbox.Func(func(ctx context.Context, _ driver.Message) error {
		calls.Add(1)
		<-ctx.Done()
		return ctx.Err()
	})
	r, err := outbox.NewRelay(c, anyNumber, sink, &outbox.Options{MaxPoll: maxPoll, Drain: time.Millisecond})
	ok(t, err)
	serve(t, r, grant(1))
	testbed.Eventually(t, "each slice is served, and looks are rare", bound, func() bool {
		return count(t, db, `interlock_outbox_fence`) == slices && calls.Load() == int64(messages) && c.Begun.Load() > 100
	})
	began, before := time.Now(), c.Statements.Load()
	testbed.Eventually(t, "looks go on", bound, func() bool { return c.Statements.Load() > before+30 })
	statements, polls := c.Statements.Load()-before, int64(time.Since(began)/maxPoll)+1
	// A look that was under way, and those of the services: each once in sixty.
	if most := 1 + polls + each*slices*(1+polls/60); statements > most {
		t.Errorf("%d statements in %d times MaxPoll, want %d at most", statements, polls, most)
	}
	if c.Commits.Load() > slices+1 { // to enter, and to trim the audit
		t.Errorf("%d commits", c.Commits.Load())
	}
}

// testFreedWhileIdle: a relay that waits sees within MaxPoll that an operator freed a key.
func testFreedWhileIdle(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	var refused atomic.Int64
	sink.Refuse(func(driver.Message) error {
		if refused.Add(1) == 1 {
			return errors.New("not yet")
		}
		return nil
	})
	add(t, db, keyed("k", 1, 1)...)
	serve(t, relay(t, db, &sink, outbox.Options{MinPause: time.Hour, MaxPause: time.Hour, MaxPoll: bound / 30}), grant(1))
	testbed.Eventually(t, "the key waits", bound, func() bool { return count(t, db, `interlock_outbox_lane`) == 1 })
	db.Do(t, func(ctx context.Context, sql driver.SQL) error { return box.Retry(ctx, sql, "k/1") })
	delivered(t, &sink, 1)
	empty(t, db)
}
