package once

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// Clean deletes records of this consumer that are older than its Retention by the database's
// clock, limit at most, the oldest first; 0 means 1000. It returns the number of deleted
// records: call it again, in another transaction, while that is the limit. If the clock is set
// back, records live longer. If it is set forward by more than the retention, all records are
// old.
//
// It keeps the positions of keys in their sequences forever. For a rotated inbox use
// [Inbox.Rotate]; Clean is a Bug there.
func (in Inbox) Clean(ctx context.Context, db driver.SQL, limit int) (int64, error) {
	t, err := in.open("clean inbox", "", db)
	switch {
	case err != nil:
		return 0, err
	case in.Rotated:
		return 0, t.Bug("it is rotated: use Rotate")
	case limit < 0:
		return 0, t.Bug("a limit of %d", limit)
	case limit == 0:
		limit = 1000
	}
	n, err := t.clean(ctx, limit)
	reportCleaned(in.Hooks, observe.OnceCleaned{Consumer: in.Consumer, Rows: n, Err: err})
	return n, err
}

// Sweep is [Inbox.Clean], or [Inbox.Rotate] for a rotated inbox: there it drops an expired
// generation and returns 0. It is for package guard/sweep.
func (in Inbox) Sweep(ctx context.Context, db driver.SQL, limit int) (int, error) {
	if in.Rotated {
		_, err := in.Rotate(ctx, db)
		return 0, err
	}
	n, err := in.Clean(ctx, db, limit)
	return int(n), err
}
