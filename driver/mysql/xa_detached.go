package mysql

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// The server removes a session from the list, and lets others finish its prepared branch,
// a moment before the storage engine detaches the branch. In between, XA COMMIT and XA
// ROLLBACK of another session are answered with success and do nothing, and remove the
// branch's name: nobody can finish the branch then until the server is restarted.

// errUndetached is why a branch is not finished though its session is gone.
var errUndetached = errors.New("the storage engine has not detached the branch from its session, which has just ended")

// Waiting for a branch to be detached takes microseconds on an idle server. A look at
// innodb_trx costs the others who look there their view of it; see detached.
const (
	grace = 120 * time.Millisecond
	looks = 5
)

// awaitDetached returns nil once a branch whose session is gone can be finished. Where that
// cannot be known it waits for looks times grace, and for half as long again at most.
func (p *Participant) awaitDetached(ctx context.Context, op string, x driver.XID) error {
	for range looks {
		if p.pause(ctx, grace+mathrand.N(grace/2)); ctx.Err() != nil {
			return unsent(ctx, op, nameOf(x))
		}
		switch detached, known := p.detached(ctx, x); {
		case known && detached:
			return nil
		case known:
			return problem(op, nameOf(x), interlock.Retryable, errUndetached)
		}
	}
	return nil
}

// detached reports whether the storage engine has detached a branch from its session.
// It is not known without the privilege PROCESS, nor if the rows of innodb_trx are older
// than this call: the server makes new ones only if nobody has read them for 100 ms. They
// are new if this very statement is in them.
func (p *Participant) detached(ctx context.Context, x driver.XID) (detached, known bool) {
	err := p.dirty(ctx, func(q querier) error {
		var session, attached, own int64
		found, err := maybe(ctx, q, `select m.session from `+p.marks+` m where m.branch = ? and m.session > 0 and `+ofThisRun, []any{p.key(x)}, &session)
		if err != nil || !found {
			detached, known = true, err == nil
			return err
		}
		this := rand.Text()
		err = one(ctx, q, fmt.Sprintf(`select /* %[1]s */ coalesce(sum(trx_mysql_thread_id = ?), 0),
			coalesce(sum(trx_mysql_thread_id = connection_id() and trx_query like '%%%[1]s%%'), 0) from information_schema.innodb_trx`, this),
			[]any{session}, &attached, &own)
		detached, known = attached == 0, own > 0
		return err
	})
	return detached, known && err == nil
}

// ofThisRun is the condition that a mark m was inserted since the server was started: the
// session of an earlier one is gone, whatever has its number now.
const ofThisRun = `m.marked > utc_timestamp(6) - interval
	(select variable_value + 1 from information_schema.global_status where variable_name = 'UPTIME') second`
