package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/prepared"
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

// branch is the session of a branch.
type branch struct {
	workplace
	xid        driver.XID
	gid, marks string
}

// Begin opens a branch, with the pool's own settings; see driver.Preparer. It sends BEGIN. Prepare
// checks whether another branch had that name.
func (p *Participant[T]) Begin(ctx context.Context, x driver.XID) (T, driver.Preparing, error) {
	var none T
	if err := p.space.Check(ctx, "begin branch", x); err != nil {
		return none, nil, err
	}
	free, err := p.slots.Take(ctx)
	if err != nil {
		return none, nil, failure.About("begin branch", prepared.Name(x), failed(ctx, inBegin, err))
	}
	native, s, err := p.begin(ctx, free)
	if err != nil {
		free()
		return none, nil, failure.About("begin branch", prepared.Name(x), failed(ctx, inBegin, err))
	}
	return native, p.space.NewBranch(x, &branch{s, x, p.gid(x), p.space.Marks}), nil
}

// leaveMark inserts the mark of the branch, if the branch has changed anything, and
// excludes others from doing so. It returns the former state of both conditions.
const leaveMark = `with state as materialized (
	select pg_current_xact_id_if_assigned() is not null as changed, pg_try_advisory_xact_lock($2::bigint) as alone
), mark as (
	insert into %s (gid, outcome, marked) select $1::text, '` + prepared.Committed + `', clock_timestamp() from state where changed and alone
)
select changed, alone from state`

// Mark is one statement.
func (b *branch) Mark(ctx context.Context) (changed bool, err error) {
	alone := false
	err = b.Query(ctx, fmt.Sprintf(leaveMark, b.marks), []any{b.gid, lockOf(b.gid)}, func(scan func(...any) error) error {
		return scan(&changed, &alone)
	})
	if err != nil || !alone {
		return false, b.refused("prepare", err)
	}
	return changed, nil
}

// EndUnchanged sends COMMIT. If that fails, with any outcome, the vote is no.
func (b *branch) EndUnchanged(ctx context.Context) error {
	return failure.About("prepare", prepared.Name(b.xid), failure.Uncommitted(b.workplace.Commit(ctx)))
}

// Prepare sends PREPARE TRANSACTION.
func (b *branch) Prepare(ctx context.Context) (driver.Vote, error) {
	const op = "prepare"
	err := b.workplace.prepare(ctx, b.gid)
	switch {
	case err == nil:
		return driver.VoteYes, nil
	case hasState(err, tooManyPrepared):
		return driver.VoteNo, problem(op, prepared.Name(b.xid), interlock.Retryable, err)
	}
	return driver.VoteNo, failure.About(op, prepared.Name(b.xid), failed(ctx, inCommit, err))
}

// refused returns why there is no mark: nothing is or will be prepared.
func (b *branch) refused(op string, err error) error {
	switch {
	case err == nil:
		return problem(op, prepared.Name(b.xid), interlock.Retryable, errors.New("another session has a branch of that name, or rolls it back"))
	case hasState(err, "23505"):
		return problem(op, prepared.Name(b.xid), interlock.Definite, fmt.Errorf("a branch of that name was finished before: %w", err))
	}
	return failure.About(op, prepared.Name(b.xid), failure.Uncommitted(err))
}

// CommitOne sends COMMIT.
func (b *branch) CommitOne(ctx context.Context) error {
	return failure.About("commit branch", prepared.Name(b.xid), b.workplace.Commit(ctx))
}

// Rollback sends ROLLBACK. If the server does not answer, the connection is closed, which
// rolls back as well.
func (b *branch) Rollback(ctx context.Context) error {
	_ = b.workplace.Rollback(ctx)
	return nil
}
