package mysql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Numbers of the server's errors about XA.
const (
	xaUnknown    = 1397 // XAER_NOTA: no such branch, or a session has it
	xaMisplaced  = 1399 // XAER_RMFAIL: not in this state
	xaRolledBack = 1402 // XA_RBROLLBACK
	xaTimedOut   = 1613 // XA_RBTIMEOUT
	xaDeadlock   = 1614 // XA_RBDEADLOCK
	xaDuplicate  = 1440 // XAER_DUPID
	duplicateKey = 1062
)

func isRolledBack(err error) bool {
	return isNumber(err, xaRolledBack) || isNumber(err, xaTimedOut) || isNumber(err, xaDeadlock)
}

// Outcomes that a mark tells.
const (
	markCommitted  = "committed"
	markRolledBack = "rolled back"
)

// errAttached: the server does not say NOTA of what does not exist alone.
var errAttached = errors.New("a session still has it: that which prepares it, or one that finishes it")

// Commit makes what the branch did visible; see driver.Participant. It is one
// statement, and a second one if the server does not know the branch. It waits for a
// moment for the session that prepared the branch to end; after that, and while another
// session finishes it, the error is Retryable.
func (p *Participant) Commit(ctx context.Context, x driver.XID) error {
	const op = "commit prepared"
	return p.finish(ctx, op, x, `xa commit `, func() error {
		outcome := ""
		// What is locked is a branch that has not ended.
		err := one(ctx, p.db, `select outcome from `+p.marks+` where branch = ? lock in share mode nowait`, []any{p.key(x)}, &outcome)
		switch {
		case isNumber(err, lockWaitTimeout), isNumber(err, lockNoWait):
			return errAttached
		case err != nil:
			return p.failed(ctx, op, x, err)
		case outcome == markCommitted:
			return nil
		case outcome == markRolledBack:
			return heuristic(op, x, "it was rolled back")
		}
		return heuristic(op, x, "it is not prepared, and left no mark of having been committed")
	})
}

// Rollback takes back what the branch did; see driver.Participant. It is one statement,
// and a second one if the server does not know the branch: that leaves a mark, by which
// a Prepare that comes later votes no. It waits for a moment for the session that has
// the branch to end; after that the error is Retryable.
func (p *Participant) Rollback(ctx context.Context, x driver.XID) error {
	const op = "roll back prepared"
	return p.finish(ctx, op, x, `xa rollback `, func() error {
		outcome := ""
		err := one(ctx, p.db, `set statement innodb_lock_wait_timeout = 0 for insert into `+p.marks+` (branch, outcome, marked)
			values (?, '`+markRolledBack+`', utc_timestamp(6)) on duplicate key update outcome = outcome returning outcome`, []any{p.key(x)}, &outcome)
		switch {
		case isNumber(err, lockWaitTimeout):
			return errAttached
		case err != nil:
			return p.failed(ctx, op, x, err)
		case outcome == markCommitted:
			return heuristic(op, x, "it was committed")
		}
		return nil
	})
}

// Waits for a session to end: the server closes it after we have. At most 2⁸ ms.
const (
	attachedLooks = 8
	attachedPause = time.Millisecond
)

// pause waits, or returns when ctx ends.
type pause func(ctx context.Context, d time.Duration)

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// finish sends a statement that ends a prepared branch, and has look find out what it
// means if the server knows no such branch.
func (p *Participant) finish(ctx context.Context, op string, x driver.XID, statement string, look func() error) error {
	if err := known(ctx, op, x); err != nil {
		return err
	}
	for i := range attachedLooks {
		_, err := p.db.ExecContext(ctx, statement+p.xid(x))
		if !isNumber(err, xaUnknown) && !isRolledBack(err) {
			return p.failed(ctx, op, x, err)
		}
		if err := look(); err != errAttached {
			return err
		}
		p.pause(ctx, attachedPause<<i)
	}
	return problem(op, nameOf(x), interlock.Retryable, errAttached)
}

// failed says what may be concluded when a branch could not be finished.
func (p *Participant) failed(ctx context.Context, op string, x driver.XID, err error) error {
	if err == nil {
		return nil
	}
	return problem(op, nameOf(x), kindOf(inCommit, err, ctx.Err() != nil), explained(ctx, err))
}

func heuristic(op string, x driver.XID, why string) error {
	return problem(op, nameOf(x), interlock.Definite, fmt.Errorf("%w: %s", driver.ErrHeuristic, why))
}
