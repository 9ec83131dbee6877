package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/prepared"
)

// Session returns the transaction of a branch on the session that Begin of [Participant]
// returned. After a Retryable error the server has rolled back a part of the branch or all of
// it, and the result refuses further statements: return the error, so that the branch is
// abandoned.
func Session(conn *sql.Conn) driver.SQL { return &lent{at: conn} }

// branch is the session of a branch. It returns to the pool only after the server has confirmed that
// it has no branch.
type branch struct {
	p          *Participant
	conn       *sql.Conn
	x          driver.XID
	xid        string // in a statement
	key, marks string
	session    int64       // its number on the server
	until      *time.Timer // ends the time of the kept session
	slot       func()      // frees it
}

// written is the number of rows that the session has written, in any table, including undone writes.
const written = `(select sum(variable_value) from information_schema.session_status
	where variable_name in ('HANDLER_WRITE', 'HANDLER_UPDATE', 'HANDLER_DELETE'))`

// Begin opens a branch on a separate session, with the pool's settings, in one request; see
// driver.Preparer. The server refuses statements that would commit. Do not close the session: the pool
// would lend it to others, with the branch, and the session and their work end when that is detected.
// If a branch of that name is unfinished, the error is Retryable.
func (p *Participant) Begin(ctx context.Context, x driver.XID) (*sql.Conn, driver.Preparing, error) {
	const op = "begin branch"
	if err := p.space.Check(ctx, op, x); err != nil {
		return nil, nil, err
	}
	free, err := p.slots.Take(ctx)
	if err != nil {
		return nil, nil, failure.About(op, prepared.Name(x), failed(ctx, inBegin, err))
	}
	conn, err := p.db.Conn(ctx)
	if err != nil {
		free()
		return nil, nil, failure.About(op, prepared.Name(x), failed(ctx, inBegin, err))
	}
	b := &branch{p: p, conn: conn, x: x, xid: p.xid(x), key: p.key(x), marks: p.space.Marks, slot: free}
	err = conn.QueryRowContext(ctx, "begin not atomic\n\tset @interlock_written = "+written+";\n\txa start "+b.xid+
		";\n\tselect connection_id();\nend").Scan(&b.session)
	if err == nil {
		return conn, p.space.NewBranch(x, b), nil
	}
	b.discard()
	if isNumber(err, xaDuplicate) {
		return nil, nil, problem(op, prepared.Name(x), interlock.Retryable, fmt.Errorf("%w: a branch of that name is not finished: %w", interlock.ErrHeld, err))
	}
	return nil, nil, failure.About(op, prepared.Name(x), failure.Uncommitted(failed(ctx, inStatement, err)))
}

// Prepare sends XA END and XA PREPARE in one request.
func (b *branch) Prepare(ctx context.Context) (driver.Vote, error) {
	const op = "prepare"
	_, err := b.conn.ExecContext(ctx, "begin not atomic\n\txa end "+b.xid+";\n\txa prepare "+b.xid+";\nend")
	if err == nil {
		b.p.hold(b)
		return driver.VoteYes, nil
	}
	defer b.discard()
	var native *client.MySQLError
	if errors.As(err, &native) && !endsSession(native.Number) && b.undo(ctx) == nil {
		return driver.VoteNo, b.refused(ctx, op, err)
	}
	return driver.VoteNo, problem(op, prepared.Name(b.x), interlock.Uncertain, explained(ctx, err))
}

// Mark inserts the mark by one statement, and reports whether the branch has changed anything.
func (b *branch) Mark(ctx context.Context) (changed bool, err error) {
	result, err := b.conn.ExecContext(ctx, `insert into `+b.marks+` (branch, outcome, marked, session)
		select ?, '`+prepared.Committed+`', utc_timestamp(6), connection_id() from dual where @interlock_written is null or @interlock_written < `+written, b.key)
	if err != nil {
		return false, b.refused(ctx, "prepare", err)
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// EndUnchanged rolls the branch back.
func (b *branch) EndUnchanged(ctx context.Context) error { return b.Rollback(ctx) }

// refused returns why the server did not prepare. The branch was rolled back.
func (b *branch) refused(ctx context.Context, op string, err error) error {
	switch {
	case isNumber(err, duplicateKey):
		return problem(op, prepared.Name(b.x), interlock.Definite, fmt.Errorf("a branch of that name was finished before: %w", explained(ctx, err)))
	case isRolledBack(err), isNumber(err, xaMisplaced): // the branch was undone, or ended by its user
		return problem(op, prepared.Name(b.x), interlock.Retryable, fmt.Errorf("the server has undone the branch: %w", explained(ctx, err)))
	case errors.Is(err, sql.ErrConnDone):
		return problem(op, prepared.Name(b.x), interlock.Bug, fmt.Errorf("the session of a branch must not be closed by its user: %w", err))
	}
	return failure.About(op, prepared.Name(b.x), failure.Uncommitted(failed(ctx, inStatement, err)))
}

// CommitOne commits in one phase, which is one request.
func (b *branch) CommitOne(ctx context.Context) error {
	const op = "commit branch"
	_, err := b.conn.ExecContext(ctx, "begin not atomic\n\txa end "+b.xid+";\n\txa commit "+b.xid+" one phase;\nend")
	switch {
	case err == nil:
		return b.close()
	case isRolledBack(err), errors.Is(err, sql.ErrConnDone):
		_ = b.undo(ctx)
		b.discard()
		return b.refused(ctx, op, err)
	}
	b.discard()
	return failure.About(op, prepared.Name(b.x), failed(ctx, inCommit, err))
}

// Rollback rolls back in one request. If the server does not confirm it, the connection is closed,
// which rolls back an unprepared branch.
func (b *branch) Rollback(ctx context.Context) error {
	if b.undo(ctx) != nil {
		b.discard()
		return nil
	}
	return b.close()
}

// close gives the connection back to the pool.
func (b *branch) close() error {
	defer b.slot()
	return b.conn.Close()
}

// undo ends the branch in any state. XA END is refused after an earlier one.
func (b *branch) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_, err := b.conn.ExecContext(ctx, "begin not atomic\n\tbegin\n\t\tdeclare continue handler for sqlexception begin end;\n\t\txa end "+
		b.xid+";\n\tend;\n\txa rollback "+b.xid+";\nend")
	return err
}

// discard closes the connection, so that it does not return to the pool. If its user has
// returned it, the server ends it.
func (b *branch) discard() {
	defer b.slot()
	closed := b.conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	if !errors.Is(closed, sql.ErrConnDone) || b.session == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	_ = kill(ctx, b.p.db, b.session) // it may have ended
}

// hold keeps a prepared branch and its session for Keep.
func (p *Participant) hold(b *branch) {
	if !p.keeps(b) {
		b.discard()
	}
}

func (p *Participant) keeps(b *branch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil || p.keep < 0 {
		return false
	}
	p.kept[b.x] = b
	b.until = time.AfterFunc(p.keep, func() { // it was not finished in time
		if p.taken(b) {
			b.discard()
		}
	})
	return true
}

// taken removes a branch from the kept ones, and reports whether it was one.
func (p *Participant) taken(b *branch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept[b.x] != b {
		return false
	}
	delete(p.kept, b.x)
	return true
}

// take removes and returns the kept branch, or returns nil.
func (p *Participant) take(x driver.XID) *branch {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.kept[x]
	if b != nil {
		delete(p.kept, x)
		b.until.Stop()
	}
	return b
}

// finish ends a prepared branch in its own session, which then returns to the pool.
func (b *branch) finish(ctx context.Context, op, statement string) error {
	_, err := b.conn.ExecContext(ctx, statement+b.xid)
	if err != nil {
		b.discard()
		return b.p.failed(ctx, op, b.x, err)
	}
	return b.close()
}

// Close closes the kept sessions: their branches stay prepared, and others can finish them. It
// closes neither the pool nor branches in progress.
func (p *Participant) Close() {
	p.mu.Lock()
	kept := p.kept
	p.kept = nil
	p.mu.Unlock()
	for _, b := range kept {
		b.until.Stop()
		b.discard()
	}
}
