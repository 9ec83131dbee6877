package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/prepared"
)

// SQLSTATEs of the statements about a prepared transaction.
const (
	undefinedObject = "42704" // nothing is prepared by that name
	busyPrepared    = "55000" // another session is finishing it
	tooManyPrepared = "53200" // as many are prepared as max_prepared_transactions allows
)

func hasState(err error, code string) bool {
	var state sqlState
	return errors.As(err, &state) && state.SQLState() == code
}

// Commit makes the changes of the branch visible; see driver.Participant. It is one
// statement, and a second one if nothing is prepared. A branch that another session
// finishes at the moment is Retryable.
func (p *Participant[T]) Commit(ctx context.Context, x driver.XID) error {
	const op = "commit prepared"
	return p.finish(ctx, op, x, "commit prepared", func() error {
		// A process that finishes a branch has made it visible before the server forgets it.
		outcome := ""
		err := p.at.query(ctx, `select outcome from `+p.space.Marks+` where gid = $1::text`, []any{p.gid(x)},
			func(scan func(...any) error) error { return scan(&outcome) })
		if err != nil {
			return p.unreadMark(ctx, op, x, err)
		}
		return p.space.CommitFound(op, x, outcome)
	})
}

// tombstone inserts a mark of a branch that is not prepared, which prevents a later
// Prepare, or returns the existing mark. It returns no row while a session works on the
// branch or finishes it.
const tombstone = `insert into %s as mark (gid, outcome, marked)
select $1::text, '` + prepared.RolledBack + `', clock_timestamp() where pg_try_advisory_xact_lock($2::bigint)
on conflict (gid) do update set outcome = mark.outcome
returning outcome`

// Rollback discards the changes of the branch; see driver.Participant. It is one statement,
// and a second one if nothing is prepared: that inserts a mark, so that a later Prepare
// votes no. If that Prepare is already in progress, or its session may exist, the error is
// Retryable.
func (p *Participant[T]) Rollback(ctx context.Context, x driver.XID) error {
	const op = "roll back prepared"
	return p.finish(ctx, op, x, "rollback prepared", func() error {
		outcome := ""
		err := p.row(ctx, fmt.Sprintf(tombstone, p.space.Marks), []any{p.gid(x), lockOf(p.gid(x))}, &outcome)
		switch {
		case errors.Is(err, errNoRow):
			return problem(op, prepared.Name(x), interlock.Retryable, errors.New("a session still prepares it"))
		case err != nil:
			return p.unreadMark(ctx, op, x, err)
		}
		return p.space.RollbackFound(op, x, outcome)
	})
}

// finish ends a prepared branch by a statement. If nothing is prepared, look returns the result.
func (p *Participant[T]) finish(ctx context.Context, op string, x driver.XID, statement string, look func() error) error {
	if err := p.space.Check(ctx, op, x); err != nil {
		return err
	}
	_, err := p.at.exec(ctx, statement+` '`+p.gid(x)+`'`)
	switch {
	case hasState(err, undefinedObject):
		return look()
	case hasState(err, busyPrepared):
		return problem(op, prepared.Name(x), interlock.Retryable, err)
	}
	return p.failed(ctx, op, prepared.Name(x), inCommit, err)
}

// unreadMark is the error of a mark that could not be read: the outcome of the branch is
// unknown.
func (p *Participant[T]) unreadMark(ctx context.Context, op string, x driver.XID, err error) error {
	if err = p.failed(ctx, op, prepared.Name(x), inCommit, err); interlock.Kind(err) == interlock.Definite {
		return problem(op, prepared.Name(x), interlock.Uncertain, errors.Unwrap(err))
	}
	return err
}

// lockOf is the number of the advisory lock that a branch has from its mark to its end.
// No namespace of locks has a slash.
func lockOf(gid string) int64 { return Key("/prepared", gid) }

// InDoubt lists the prepared branches of this database and namespace, the oldest first.
func (p *Participant[T]) InDoubt(ctx context.Context) (all []driver.InDoubt, err error) {
	const op = "list prepared"
	if ctx.Err() != nil {
		return nil, fail.Unsent(ctx, op, p.space.Namespace)
	}
	err = p.at.query(ctx, `select gid, prepared from pg_prepared_xacts
		where database = current_database() and starts_with(gid, $1::text) order by prepared, gid`, []any{p.prefix()},
		func(scan func(...any) error) error {
			var gid string
			var since time.Time
			if err := scan(&gid, &since); err != nil {
				return err
			}
			if x, ok := p.parseGID(gid); ok {
				all = append(all, driver.InDoubt{XID: x, Since: since.UTC()})
			}
			return nil
		})
	if err != nil {
		return nil, p.failed(ctx, op, p.space.Namespace, inBegin, err)
	}
	return all, nil
}

// forgetBatch is how many marks one statement removes or notes.
const forgetBatch = 10000

// The age of a mark begins with the first Forget that sees it. The branch may have been
// prepared long before its commit, whose time is unknown.
const (
	forgetMarks = `delete from %[1]s where gid in (select gid from %[1]s where starts_with(gid, $1::text) and seen < $2::timestamptz
	limit %[2]d for update skip locked)`
	seeMarks = `update %[1]s set seen = clock_timestamp() where gid in (select gid from %[1]s where starts_with(gid, $1::text) and seen is null
	limit %[2]d for update skip locked)`
)

// Forget removes the marks of this namespace that an earlier Forget has seen before that time, by the
// database's clock, and returns their number. Call it regularly, with the begin of the oldest
// unfinished transaction in the journal, or the time of the call if there is none. Subtract the
// possible difference of the clocks from it. A Commit of a branch without its mark is an
// ErrHeuristic.
func (p *Participant[T]) Forget(ctx context.Context, before time.Time) (removed int64, err error) {
	const op = "forget marks"
	if ctx.Err() != nil {
		return 0, fail.Unsent(ctx, op, p.space.Namespace)
	}
	if removed, err = p.batches(ctx, forgetMarks, p.prefix(), before.UTC()); err == nil {
		_, err = p.batches(ctx, seeMarks, p.prefix())
	}
	return removed, p.failed(ctx, op, p.space.Namespace, inCommit, err)
}

func (p *Participant[T]) batches(ctx context.Context, query string, args ...any) (all int64, err error) {
	for {
		n, err := p.at.exec(ctx, fmt.Sprintf(query, p.space.Marks, forgetBatch), args...)
		all += n
		if err != nil || n < forgetBatch {
			return all, err
		}
	}
}
