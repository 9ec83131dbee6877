package once_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

// TestClean deletes records older than the retention, in batches, and no others.
func TestClean(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		var told []observe.OnceCleaned
		w := newWorld(t, open(t), once.Inbox{Consumer: "billing",
			Hooks: &observe.Once{Cleaned: func(e observe.OnceCleaned) { told = append(told, e) }}})
		other := w
		other.inbox.Consumer = "shipping"
		_, err := once.BatchTx(t.Context(), w.DB, w.inbox, messages(0, 10), effectsOf)
		ok(t, err)
		outcome, err := other.deliver(t.Context(), message(0))
		want(t, outcome, err, once.Done)
		w.age(t, "message_id in ('m0','m1','m2','m3','m4')", 7*24*time.Hour+time.Minute)
		w.age(t, "message_id in ('m5')", 7*24*time.Hour-time.Minute)
		w.age(t, "message_id in ('m6')", -24*time.Hour) // the clock was set back since

		for _, wanted := range []int64{3, 2, 0} {
			if n := w.clean(t, w.inbox, 3); n != wanted {
				t.Errorf("cleaned %d, want %d", n, wanted)
			}
		}
		if n := other.clean(t, other.inbox, 0); n != 1 {
			t.Errorf("cleaned %d of the other consumer", n)
		}
		if got := fmt.Sprint(told); got != "[{billing 3 0 <nil>} {billing 2 0 <nil>} {billing 0 0 <nil>} {shipping 1 0 <nil>}]" {
			t.Errorf("told %s", got)
		}
		for n := range 10 { // kept messages are duplicates
			wanted := once.Duplicate
			if n < 5 {
				wanted = once.Done
			}
			outcome, err := w.deliver(t.Context(), message(n))
			want(t, outcome, err, wanted)
		}
		short := w.inbox
		short.Retention = time.Hour
		if n := w.clean(t, short, 0); n != 1 {
			t.Errorf("cleaned %d after an hour", n)
		}
		w.wantKindOfClean(t, func(in *once.Inbox) { in.Rotated = true }, 0)
		w.wantKindOfClean(t, func(*once.Inbox) {}, -1)
		w.wantKindOfClean(t, func(in *once.Inbox) { in.Consumer = "" }, 0)
	})
}

// TestCleanReadsWhatIsOld, and not every record.
func TestCleanReadsWhatIsOld(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		w := newWorld(t, open(t), once.Inbox{Consumer: "billing"})
		p := &databases.Planned{BeginnerAt: w.DB}
		p.Do(t, func(ctx context.Context, db driver.SQL) error { _, err := w.inbox.Clean(ctx, db, 0); return err })
		p.Want(t, "recorded_at")
	}, databases.Pgx)
}

// TestCleanHoldsNobodyUp: Clean does not block new messages.
func TestCleanHoldsNobodyUp(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		w := newWorld(t, open(t), once.Inbox{Consumer: "billing"})
		_, err := once.BatchTx(t.Context(), w.DB, w.inbox, messages(0, 4), nothingNew)
		ok(t, err)
		w.age(t, "message_id <> 'm3'", 8*24*time.Hour)
		for range 2 { // beside a record that stays, and alone
			tx := w.Begun(t, driver.SessionIsolation)
			n, err := w.inbox.Clean(t.Context(), tx, 0)
			if ok(t, err); n == 0 {
				t.Error("nothing was cleaned")
			}
			second := later(t, func() (once.Outcome, error) { return w.deliver(t.Context(), message(100+int(n))) })
			a := second()
			want(t, a.outcome, a.err, once.Done)
			ok(t, tx.Commit(t.Context()))
			w.age(t, "1 = 1", 8*24*time.Hour)
		}
	}, databases.Pgx, databases.Maria)
}

// age makes records that many hours old.
func (w world) age(t *testing.T, which string, by time.Duration) {
	t.Helper()
	interval := fmt.Sprintf("interval %d microsecond", by.Microseconds())
	if w.Dialect == driver.Postgres {
		interval = fmt.Sprintf("interval '%d microseconds'", by.Microseconds())
	}
	w.Exec(t, "update interlock_inbox set recorded_at = recorded_at - "+interval+" where "+which)
}

func (w world) clean(t *testing.T, in once.Inbox, limit int) (n int64) {
	t.Helper()
	w.Do(t, func(ctx context.Context, db driver.SQL) (err error) {
		n, err = in.Clean(ctx, db, limit)
		return err
	})
	return n
}

func (w world) wantKindOfClean(t *testing.T, change func(*once.Inbox), limit int) {
	t.Helper()
	in := w.inbox
	change(&in)
	err := w.Try(t.Context(), func(ctx context.Context, db driver.SQL) error {
		_, err := in.Clean(ctx, db, limit)
		return err
	})
	wantKind(t, err, interlock.Bug, nil)
}
