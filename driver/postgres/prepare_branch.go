package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// workplace is the transaction of a branch, and the connection that it runs on. One of
// its last three methods is called at the end, and gives the connection back. Errors of
// prepare are the client's.
type workplace interface {
	driver.SQL
	prepare(ctx context.Context, gid string) error
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// branch is driver.Preparing.
type branch struct {
	workplace
	xid        driver.XID
	gid, marks string
	over       bool
}

// Begin opens a branch, with the pool's own settings; see driver.Preparer. It sends
// BEGIN. What another branch of that name has done is noticed by Prepare.
func (p *Participant[T]) Begin(ctx context.Context, x driver.XID) (T, driver.Preparing, error) {
	var none T
	if err := p.known(ctx, "begin branch", x); err != nil {
		return none, nil, err
	}
	native, s, err := p.begin(ctx)
	if err != nil {
		return none, nil, failure.About("begin branch", name(x), failed(ctx, inBegin, err))
	}
	return native, &branch{workplace: s, xid: x, gid: p.gid(x), marks: p.marks}, nil
}

// leaveMark inserts the mark of the branch, if the branch has changed anything, and
// keeps others from doing so. It tells both conditions as they were before.
const leaveMark = `with state as materialized (
	select pg_current_xact_id_if_assigned() is not null as changed, pg_try_advisory_xact_lock($2::bigint) as alone
), mark as (
	insert into %s (gid, outcome, marked) select $1::text, '` + markCommitted + `', clock_timestamp() from state where changed and alone
)
select changed, alone from state`

// Prepare votes; see driver.Preparing. It is two statements: the mark, and PREPARE
// TRANSACTION or COMMIT.
func (b *branch) Prepare(ctx context.Context) (driver.Vote, error) {
	const op = "prepare"
	if b.over {
		return driver.VoteNo, b.ended(op)
	}
	var changed, alone bool
	err := b.Query(ctx, fmt.Sprintf(leaveMark, b.marks), []any{b.gid, lockOf(b.gid)}, func(scan func(...any) error) error {
		return scan(&changed, &alone)
	})
	switch {
	case err != nil, !alone:
		_ = b.Abandon(ctx)
		return driver.VoteNo, b.refused(op, err)
	case !changed:
		b.over = true
		if err := b.workplace.Commit(ctx); err != nil { // its outcome does not matter
			return driver.VoteNo, failure.About(op, name(b.xid), failure.Uncommitted(err))
		}
		return driver.VoteReadOnly, nil
	}
	b.over = true
	err = b.workplace.prepare(ctx, b.gid)
	switch {
	case err == nil:
		return driver.VoteYes, nil
	case hasState(err, tooManyPrepared):
		return driver.VoteNo, problem(op, name(b.xid), interlock.Retryable, err)
	}
	return driver.VoteNo, failure.About(op, name(b.xid), failed(ctx, inCommit, err))
}

// refused says why there is no mark: nothing was prepared, and nothing will be.
func (b *branch) refused(op string, err error) error {
	switch {
	case err == nil:
		return problem(op, name(b.xid), interlock.Retryable, errors.New("another session has a branch of that name, or rolls it back"))
	case hasState(err, "23505"):
		return problem(op, name(b.xid), interlock.Definite, fmt.Errorf("a branch of that name was finished before: %w", err))
	}
	return failure.About(op, name(b.xid), failure.Uncommitted(err))
}

// CommitOne commits without preparing; see driver.Preparing.
func (b *branch) CommitOne(ctx context.Context) error {
	const op = "commit branch"
	switch {
	case b.over:
		return b.ended(op)
	case ctx.Err() != nil:
		_ = b.Abandon(ctx)
		return fail.Unsent(ctx, op, name(b.xid))
	}
	b.over = true
	return failure.About(op, name(b.xid), b.workplace.Commit(ctx))
}

// Abandon rolls back, whatever ctx says; see driver.Preparing. If the server cannot be
// told, the connection is closed, which rolls back as well.
func (b *branch) Abandon(ctx context.Context) error {
	if b.over {
		return nil
	}
	b.over = true
	_ = b.Rollback(ctx)
	return nil
}

func (b *branch) ended(op string) error {
	return problem(op, name(b.xid), interlock.Bug, errors.New("the branch has ended"))
}
