package once

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// Clean deletes records of this consumer that are older than its Retention by the
// database's clock, limit at most, the oldest first; 0 means 1000. It returns how
// many: call it again, in another transaction, while that is the limit. A clock
// that is set back makes records live longer; one that is set forward by more than
// the retention makes all of them old.
//
// Places of keys in their sequences are kept for ever. A rotated inbox has
// [Inbox.Rotate] instead, and Clean of it is a Bug.
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
	tellCleaned(in.Hooks, observe.OnceCleaned{Consumer: in.Consumer, Rows: n, Err: err})
	return n, err
}
