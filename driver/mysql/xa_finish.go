package mysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/prepared"
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

// Commit makes the changes of the branch visible; see driver.Participant. It is one statement
// if the session of the branch is kept, and otherwise six, with a pause. If another process
// has the session or finishes the branch, the error is Retryable.
func (p *Participant) Commit(ctx context.Context, x driver.XID) error {
	const op = "commit prepared"
	return p.finish(ctx, op, x, "xa commit ", func() error {
		outcome := ""
		// A locked mark belongs to a branch that has not ended.
		err := one(ctx, p.db, `select outcome from `+p.space.Marks+` where branch = ? lock in share mode nowait`, []any{p.key(x)}, &outcome)
		switch {
		case isNumber(err, lockWaitTimeout):
			return errUnfinished
		case err != nil:
			return p.unreadMark(ctx, op, x, err)
		}
		return p.space.CommitFound(op, x, outcome)
	})
}

// Rollback discards the changes of the branch; see driver.Participant. It is one statement if
// the session of the branch is kept. If there is no such branch, one statement inserts a mark,
// so that a later Prepare votes no. Otherwise it is six, with a pause. If another process has
// the session or finishes the branch, the error is Retryable.
func (p *Participant) Rollback(ctx context.Context, x driver.XID) error {
	const op = "roll back prepared"
	return p.finish(ctx, op, x, "xa rollback ", func() error {
		outcome := ""
		err := one(ctx, p.db, `set statement innodb_lock_wait_timeout = 0 for insert into `+p.space.Marks+` (branch, outcome, marked, session)
			values (?, '`+prepared.RolledBack+`', utc_timestamp(6), 0) on duplicate key update outcome = outcome returning outcome`, []any{p.key(x)}, &outcome)
		switch {
		case isNumber(err, lockWaitTimeout):
			return errUnfinished
		case err != nil:
			return p.unreadMark(ctx, op, x, err)
		}
		return p.space.RollbackFound(op, x, outcome)
	})
}

// Reasons why an existing branch is not finished.
var (
	errUnfinished = errors.New("the branch has not ended")
	errAttached   = errors.New("a live session still has it")
	errBusy       = errors.New("the server does not know it, and it has not ended: another process finishes it, or its session is ending")
	errMarkLocked = errors.New("the server reports that it has ended, but its mark is still locked: if this lasts, the server has lost the name of the branch until it is restarted")
)

// finish sends a statement that ends a prepared branch: in its own session, or if the branch has no
// session in any. look returns the outcome of the branch, or errUnfinished.
func (p *Participant) finish(ctx context.Context, op string, x driver.XID, statement string, look func() error) error {
	if err := p.space.Check(ctx, op, x); err != nil {
		return err
	}
	if b := p.take(x); b != nil {
		return b.finish(ctx, op, statement)
	}
	if err := look(); !errors.Is(err, errUnfinished) {
		return err
	}
	attached, err := p.attached(ctx, x)
	switch {
	case err != nil:
		return problem(op, prepared.Name(x), interlock.Retryable, explained(ctx, err))
	case attached:
		return problem(op, prepared.Name(x), interlock.Retryable, errAttached)
	}
	if err := p.awaitDetached(ctx, op, x); err != nil {
		return err
	}
	_, err = p.db.ExecContext(ctx, statement+p.xid(x))
	switch {
	case isNumber(err, xaUnknown), isRolledBack(err):
		return problem(op, prepared.Name(x), interlock.Retryable, errBusy)
	case err != nil:
		return p.failed(ctx, op, x, err)
	}
	if err = look(); errors.Is(err, errUnfinished) {
		return problem(op, prepared.Name(x), interlock.Retryable, errMarkLocked)
	}
	return err
}

// overdue is the time beyond Keep after which an idle session counts as that of a stopped process or
// a failed host.
const overdue = 3 * time.Second

// attached reports whether the session of a branch exists, and ends it if it is overdue. It reads
// uncommitted marks.
func (p *Participant) attached(ctx context.Context, x driver.XID) (lives bool, err error) {
	err = p.dirty(ctx, func(q querier) error {
		var session int64
		var late bool
		lives, err = maybe(ctx, q, `select p.id, p.command = 'Sleep' and p.time_ms > ? from `+p.space.Marks+` m join information_schema.processlist p on p.id = m.session
			where m.branch = ? and `+ofThisRun,
			[]any{max(p.keep, 0).Milliseconds() + overdue.Milliseconds(), p.key(x)}, &session, &late)
		if late && err == nil {
			err = kill(ctx, q, session)
		}
		return err
	})
	return lives, err
}

// kill ends a session of the server: prepared branches stay prepared, and the rest is rolled back.
func kill(ctx context.Context, q querier, session int64) error {
	_, err := q.ExecContext(ctx, fmt.Sprint("kill connection ", session))
	if isNumber(err, noSuchThread) {
		return nil
	}
	return err
}

// dirty calls read in a transaction that reads uncommitted data.
func (p *Participant) dirty(ctx context.Context, read func(querier) error) error {
	tx, err := p.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadUncommitted, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	return read(tx)
}

// failed classifies the error of a branch that could not be finished.
func (p *Participant) failed(ctx context.Context, op string, x driver.XID, err error) error {
	if err == nil {
		return nil
	}
	return problem(op, prepared.Name(x), kindOf(inCommit, err, ctx.Err() != nil), explained(ctx, err))
}

// unreadMark returns the error for a mark that could not be read: the branch's outcome is unknown.
func (p *Participant) unreadMark(ctx context.Context, op string, x driver.XID, err error) error {
	return problem(op, prepared.Name(x), interlock.Uncertain, explained(ctx, err))
}

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

// InDoubt lists the prepared branches of this namespace, including those of sessions that have not
// ended. The times come from the marks, by a transaction that reads uncommitted data, because the
// server does not report them.
func (p *Participant) InDoubt(ctx context.Context) (all []driver.InDoubt, err error) {
	const op = "list prepared"
	if ctx.Err() != nil {
		return nil, fail.Unsent(ctx, op, p.space.Namespace)
	}
	err = each(ctx, p.db, `xa recover format = 'sql'`, nil, func(rows *sql.Rows) error {
		var format, gtrid, bqual int64
		var data string
		err := rows.Scan(&format, &gtrid, &bqual, &data)
		if x, ok := p.parseXID(data); ok {
			all = append(all, driver.InDoubt{XID: x})
		}
		return err
	})
	if err == nil && len(all) > 0 {
		err = p.dirty(ctx, func(q querier) error { return p.readSince(ctx, q, all) })
	}
	if err != nil {
		return nil, ofRead(ctx, op, p.space.Namespace, err)
	}
	return all, nil
}

// readSince reads the times when branches were prepared.
func (p *Participant) readSince(ctx context.Context, q querier, all []driver.InDoubt) error {
	for part := range slices.Chunk(all, 1000) {
		at := map[string]*driver.InDoubt{}
		var keys []any
		for i := range part {
			at[p.key(part[i].XID)] = &part[i]
			keys = append(keys, p.key(part[i].XID))
		}
		err := each(ctx, q, `select branch, timestampdiff(microsecond, '2020-01-01', marked) from `+p.space.Marks+
			` where branch in (`+parameters(len(keys))+`)`, keys, func(rows *sql.Rows) error {
			var key string
			var micros int64
			err := rows.Scan(&key, &micros)
			if d := at[key]; d != nil {
				d.Since = serverTime(micros)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// parseXID parses a text of XA RECOVER, and returns the branch if it is in this namespace.
func (p *Participant) parseXID(data string) (x driver.XID, ok bool) {
	parts := strings.Split(data, ",")
	if len(parts) != 3 || parts[2] != strconv.Itoa(formatID) {
		return x, false
	}
	gtrid, known := unquoted(parts[0])
	bqual, knows := unquoted(parts[1])
	branch, ours := strings.CutPrefix(bqual, p.space.Namespace+"/")
	x = driver.XID{Transaction: gtrid, Branch: branch}
	return x, known && knows && ours && x.Check() == nil
}

// unquoted parses a text of XA RECOVER: X'6869' or 'hi'. Texts of this package have no comma or
// quote.
func unquoted(s string) (string, bool) {
	digits, isHex := strings.CutPrefix(s, "X'")
	if !isHex {
		plain, ok := strings.CutPrefix(s, "'")
		return strings.TrimSuffix(plain, "'"), ok && strings.HasSuffix(plain, "'")
	}
	raw, err := hex.DecodeString(strings.TrimSuffix(digits, "'"))
	return string(raw), err == nil && strings.HasSuffix(digits, "'")
}

// forgetBatch bounds the marks that one statement removes or updates.
const forgetBatch = 1000

// Forget removes the marks of this namespace that an earlier Forget has seen before a time of the
// database's clock, and returns their number. Call it periodically with the begin of the oldest
// unfinished transaction in the journal, or now if there is none. Subtract the maximum difference of
// clocks. A Commit after the removal of the branch's mark is an ErrHeuristic.
//
// The age of a mark begins with the first Forget that sees it. The branch may have been
// prepared long before its commit, whose time is unknown.
func (p *Participant) Forget(ctx context.Context, before time.Time) (removed int64, err error) {
	const op = "forget marks"
	if ctx.Err() != nil {
		return 0, fail.Unsent(ctx, op, p.space.Namespace)
	}
	micros := before.UnixMicro() - interlock.EpochUnixMicro
	removed, err = p.batches(ctx, `timestampdiff(microsecond, '2020-01-01', seen) < ?`, `delete from `+p.space.Marks+` where`, micros)
	if err == nil {
		_, err = p.batches(ctx, `coalesce(?, seen) is null`, `update `+p.space.Marks+` set seen = utc_timestamp(6) where seen is null and`, nil)
	}
	return removed, ofStatement(ctx, op, p.space.Namespace, err)
}

// batches changes the marks for which a condition holds. It reads the committed ones without locks,
// and then locks them one by one: a locking scan would wait for every branch in doubt.
func (p *Participant) batches(ctx context.Context, condition, change string, arg any) (all int64, err error) {
	prefix := p.space.Namespace + "/"
	for {
		var keys []any
		err := each(ctx, p.db, `select branch from `+p.space.Marks+` where left(branch, ?) = ? and `+condition+` limit ?`,
			[]any{len(prefix), prefix, arg, forgetBatch}, func(rows *sql.Rows) error {
				var key string
				err := rows.Scan(&key)
				keys = append(keys, key)
				return err
			})
		if err != nil || len(keys) == 0 {
			return all, err
		}
		result, err := p.db.ExecContext(ctx, change+` branch in (`+parameters(len(keys))+`)`, keys...)
		if err != nil {
			return all, err
		}
		n, err := result.RowsAffected()
		if all += n; err != nil || len(keys) < forgetBatch {
			return all, err
		}
	}
}
