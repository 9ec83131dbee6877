package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/prepared"
)

// The server removes a session from the list, and lets others finish its prepared branch,
// a moment before the storage engine detaches the branch. In between, XA COMMIT and XA
// ROLLBACK of another session are answered with success and do nothing, and remove the
// branch's name: the branch then cannot be finished until the server is restarted.

// errStillAttached means that a branch cannot be finished yet although its session has ended.
var errStillAttached = errors.New("the storage engine has not detached the branch from its session, which has just ended")

// A branch is detached within microseconds on an idle server. grace is the wait if that cannot be
// seen, and lookEvery the interval of up to looks checks if it can.
const (
	grace     = 500 * time.Millisecond
	looks     = 5
	lookEvery = 20 * time.Millisecond
)

// awaitDetached returns nil once a branch whose session has ended can be finished. It waits for up to
// grace.
func (p *Participant) awaitDetached(ctx context.Context, op string, x driver.XID) error {
	for range looks {
		detached, known := p.detached(ctx, x)
		if known && detached {
			return nil
		}
		wait := lookEvery
		if !known {
			wait = grace
		}
		if !p.pause(ctx, wait) {
			return fail.Unsent(ctx, op, prepared.Name(x))
		}
		if !known {
			return nil
		}
	}
	return problem(op, prepared.Name(x), interlock.Retryable, errStillAttached)
}

// detached reports whether the storage engine has detached a branch from its session. The
// engine's status names the sessions of all transactions; without the privilege PROCESS,
// or if it is truncated, nothing is known. The table innodb_trx is unsuitable: it shows old rows
// until it was not read for 100 ms.
func (p *Participant) detached(ctx context.Context, x driver.XID) (detached, known bool) {
	err := p.dirty(ctx, func(q querier) error {
		var session, own int64
		// This begins a transaction of this session, which the status must name too.
		found, err := maybe(ctx, q, `select m.session, connection_id() from `+p.space.Marks+` m where m.branch = ? and m.session > 0 and `+ofThisRun,
			[]any{p.key(x)}, &session, &own)
		if err != nil || !found {
			detached, known = true, true
			return err
		}
		var engine, name, status string
		err = each(ctx, q, `show engine innodb status`, nil, func(rows *sql.Rows) error { return rows.Scan(&engine, &name, &status) })
		detached = !strings.Contains(status, threadOf(session))
		known = strings.Contains(status, threadOf(own)) && !strings.Contains(status, "truncated...")
		return err
	})
	return detached, known && err == nil
}

// threadOf returns the name of a transaction's session in the engine's status.
func threadOf(session int64) string { return fmt.Sprintf("MariaDB thread id %d,", session) }

// ofThisRun is the condition that a mark m was inserted since the server was started. The session of
// an earlier mark has ended, even if another one has its number now.
const ofThisRun = `m.marked > utc_timestamp(6) - interval
	(select variable_value + 1 from information_schema.global_status where variable_name = 'UPTIME') second`
