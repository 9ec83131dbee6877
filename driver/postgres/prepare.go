package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/prepared"
)

// DefaultMarks is the default of ParticipantOptions.Marks.
const DefaultMarks = "interlock_committed"

// ParticipantOptions of a [Participant]; nil and the zero value work.
type ParticipantOptions struct {
	// Marks is the table, or schema.table, in which each branch leaves a mark when it
	// commits; empty means [DefaultMarks]. Namespaces may share it. It is trusted:
	// never take it from a request.
	Marks string
}

// Participant prepares branches of distributed transactions in one database by
// PREPARE TRANSACTION, and finishes and lists those of its namespace. T is the type of the
// user's transaction in a branch. It never ends a prepared branch by itself: a branch in
// doubt keeps its locks, and the server its dead rows, until Commit or Rollback. Between
// the commits of two branches, others can read a part of the transaction.
//
//	p, err := postgres.OpenParticipant(ctx, pool, "shop", nil)
//	tx, branch, err := p.Begin(ctx, x)
//	…                                                // work in tx
//	vote, err := branch.Prepare(ctx)
//	err = p.Commit(ctx, x)                           // from any process
//
// A branch inserts its mark in its own transaction, so the mark exists if and only if the
// branch was committed: it records the outcome after the server has forgotten the branch.
// A Rollback of a branch that is not prepared inserts a mark too, so that a late Prepare
// fails. [Participant.Forget] removes marks.
//
// The server refuses to prepare a transaction that used temporary tables, LISTEN, NOTIFY or
// a cursor WITH HOLD: the vote is no. A branch without a transaction id has changed
// nothing and is committed at once, as VoteReadOnly; a NOTIFY is sent with that.
// Only the role that prepared a branch, or a superuser, can finish it, in the same
// database. It is safe for concurrent use.
type Participant[T any] struct {
	space prepared.Space
	at    autocommit
	slots prepared.Slots
	begin func(ctx context.Context, free func()) (T, workplace, error)
}

var (
	_ driver.Preparer[pgx.Tx]  = (*Participant[pgx.Tx])(nil)
	_ driver.Preparer[*sql.Tx] = (*Participant[*sql.Tx])(nil)
)

// autocommit runs statements, each a transaction of its own, on the user's pool. Errors
// are those of the client.
type autocommit interface {
	exec(ctx context.Context, query string, args ...any) (affected int64, err error)
	query(ctx context.Context, query string, args []any, each func(scan func(...any) error) error) error
}

// OpenParticipant creates the table of marks if it is missing, and refuses a server whose
// max_prepared_transactions is 0. Only the coordinators of one journal may share a namespace: a
// coordinator with another journal would roll back branches that they decided to commit. The namespace
// never changes and has 1 to driver.MaxXIDNamespace letters, digits, - and _. The caller owns the pool.
//
// Branches occupy at most seven eighths of the pool, and leave one connection at least (of a pool of
// two or more): Commit and Rollback need a connection, for which branches may be waiting. Begin waits
// for a free one until its context ends.
func OpenParticipant(ctx context.Context, pool *pgxpool.Pool, namespace string, o *ParticipantOptions) (*Participant[pgx.Tx], error) {
	p := &Participant[pgx.Tx]{at: onPool{pool}, begin: func(ctx context.Context, free func()) (pgx.Tx, workplace, error) {
		return beginOnPool(ctx, pool, free)
	}, slots: prepared.SlotsOf(pool, func(p *pgxpool.Pool) int { return int(p.Config().MaxConns) })}
	return p.open(ctx, namespace, pool != nil, o)
}

// OpenStdParticipant is [OpenParticipant] for database/sql. The user must not end the *sql.Tx of a
// branch: a commit there cannot be undone. Call SetMaxOpenConns of db before.
func OpenStdParticipant(ctx context.Context, db *sql.DB, namespace string, o *ParticipantOptions) (*Participant[*sql.Tx], error) {
	p := &Participant[*sql.Tx]{at: onDB{db}, begin: func(ctx context.Context, free func()) (*sql.Tx, workplace, error) {
		return beginOnDB(ctx, db, free)
	}, slots: prepared.SlotsOf(db, func(db *sql.DB) int { return db.Stats().MaxOpenConnections })}
	return p.open(ctx, namespace, db != nil, o)
}

func (p *Participant[T]) open(ctx context.Context, namespace string, pool bool, o *ParticipantOptions) (_ *Participant[T], err error) {
	const op = "open participant"
	marks := DefaultMarks
	if o != nil {
		marks = cmp.Or(o.Marks, marks)
	}
	if p.space, err = prepared.Open(ctx, fail, driver.Postgres, namespace, marks, pool); err != nil {
		return nil, err
	}
	if err = p.probe(ctx, op); err == nil {
		err = p.create(ctx)
	}
	if err != nil {
		return nil, p.failed(ctx, op, p.space.Namespace, inBegin, err)
	}
	return p, nil
}

// errNoPrepared names the setting of a server whose limit is 0, as it is by default.
var errNoPrepared = errors.New("this server prepares no transactions: set max_prepared_transactions to at least " +
	"max_connections, in postgresql.conf or by alter system, and restart it")

// probe refuses a server that cannot prepare.
func (p *Participant[T]) probe(ctx context.Context, op string) error {
	var most, version int
	var standby bool
	err := p.row(ctx, `select current_setting('max_prepared_transactions')::int, current_setting('server_version_num')::int, pg_is_in_recovery()`,
		nil, &most, &version, &standby)
	switch {
	case err != nil:
		return err
	case version < 140000:
		return problem(op, p.space.Namespace, interlock.Definite, fmt.Errorf("the server is version %d; 14 or later is needed", version/10000))
	case standby:
		return problem(op, p.space.Namespace, interlock.Definite, errors.New("the server is a standby; connect to its primary"))
	case most == 0:
		return problem(op, p.space.Namespace, interlock.Definite, errNoPrepared)
	}
	return nil
}

// create creates the table of marks, unless it exists: then the user needs no right to
// create one.
func (p *Participant[T]) create(ctx context.Context) error {
	exists := false
	err := p.row(ctx, `select to_regclass($1::text) is not null`, []any{p.space.Marks}, &exists)
	if err != nil || exists {
		return err
	}
	// Several statements of one request are one transaction.
	_, err = p.at.exec(ctx, fmt.Sprintf(`select pg_advisory_xact_lock(%d); `, Key(DefaultNamespace, ""))+marksSchema(p.space.Marks))
	return err
}

func marksSchema(table string) string {
	return `create table if not exists ` + table + ` (
	gid text collate "C" primary key,
	outcome text not null,
	marked timestamptz not null,
	seen timestamptz)`
}

// row runs a query that gives one row.
func (p *Participant[T]) row(ctx context.Context, query string, args []any, dest ...any) error {
	found := false
	err := p.at.query(ctx, query, args, func(scan func(...any) error) error {
		found = true
		return scan(dest...)
	})
	if err == nil && !found {
		err = errNoRow
	}
	return err
}

var errNoRow = errors.New("the server answered without a row")

// prefix begins the gids of the namespace; no other namespace's begin with it.
func (p *Participant[T]) prefix() string { return "interlock/" + p.space.Namespace + "/" }

// gid is the name that the server knows the branch by. Neither part has a quote in it.
func (p *Participant[T]) gid(x driver.XID) string {
	return p.prefix() + x.Branch + "/" + x.Transaction
}

// parseGID returns the XID in a gid of this namespace.
func (p *Participant[T]) parseGID(gid string) (x driver.XID, ok bool) {
	rest, ours := strings.CutPrefix(gid, p.prefix())
	x.Branch, x.Transaction, ok = strings.Cut(rest, "/")
	return x, ours && ok && x.Check() == nil
}

// failed classifies an error of a client.
func (p *Participant[T]) failed(ctx context.Context, op, name string, at stage, err error) error {
	if err == nil {
		return nil
	}
	if errors.As(err, new(*interlock.Error)) {
		return err
	}
	return problem(op, name, kindOf(at, err, ctx.Err() != nil), driver.WithCause(ctx, err))
}

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
