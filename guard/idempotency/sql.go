package idempotency

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/internal/transact"
)

// SQL keeps records in a table of the database in which requests have their effects, so that a
// [Phase] commits both together. T is the type that the user's code works with, such as pgx.Tx.
// It is safe for concurrent use.
//
// It implements driver.Idempotency; each method is one statement in its own transaction.
type SQL[T any] struct {
	db    driver.Beginner[T]
	table Table
	lower atomic.Bool // records are kept at read committed
}

var _ driver.Idempotency = (*SQL[any])(nil)

// NewSQL returns an SQL for table t of db; it sends nothing.
func NewSQL[T any](db driver.Beginner[T], t Table) *SQL[T] { return &SQL[T]{db: db, table: t} }

// Claim creates or takes over a record; see driver.Idempotency. It blocks while another
// transaction locks the record's row, for example to commit a phase.
func (s *SQL[T]) Claim(ctx context.Context, c driver.IdempotencyClaim) (r driver.IdempotencyRecord, err error) {
	const op = "claim request"
	if err := c.ID.Validate(); err != nil {
		return r, err
	}
	if c.Owner == "" || c.Fingerprint == "" || c.Lease <= 0 {
		return r, failure.Bug(op, c.ID.Key, "it needs an owner, a fingerprint and a lease")
	}
	err = s.alone(ctx, op, c.ID.Key, func(l ledger) (err error) {
		r, err = l.claim(ctx, c)
		return err
	})
	return r, err
}

// Update changes the record of an attempt; see driver.Idempotency.
func (s *SQL[T]) Update(ctx context.Context, u driver.IdempotencyUpdate) error {
	const op = "update request"
	if err := u.ID.Validate(); err != nil {
		return err
	}
	return s.alone(ctx, op, u.ID.Key, func(l ledger) error {
		done, err := l.update(ctx, u)
		if err != nil || done {
			return err
		}
		owner, found, err := l.owner(ctx, u.ID)
		switch {
		case err != nil:
			return err
		case owner == u.Owner, !found && u.Forget: // finished, or done before; or written in the same microsecond
			return nil
		}
		return lost(op, u.ID.Key)
	})
}

// Unfinished lists unfinished requests whose lease has expired; see driver.Idempotency.
func (s *SQL[T]) Unfinished(ctx context.Context, q driver.IdempotencyQuery) (found []driver.IdempotencyRecord, err error) {
	err = s.alone(ctx, "list requests", q.Operation, func(l ledger) (err error) {
		found, err = l.list(ctx, q)
		return err
	})
	return found, ofKind(err, interlock.Uncertain, interlock.Retryable)
}

// Remove removes records whose retention has passed, on PostgreSQL in one statement; see
// driver.Idempotency.
func (s *SQL[T]) Remove(ctx context.Context, limit int) (removed int, err error) {
	err = s.alone(ctx, "remove requests", "", func(l ledger) (err error) {
		removed, err = l.remove(ctx, limit)
		return err
	})
	return removed, err
}

// maxPause is how long a process may be paused between the statement of a step and its COMMIT.
// Its session locks the record's row meanwhile, even if it is a duplicate that has changed
// nothing. So the running attempt waits.
const maxPause = 2 * time.Second

// alone runs a step in its own transaction.
func (s *SQL[T]) alone(ctx context.Context, op, key string, step func(ledger) error) error {
	return failure.About(op, key, transact.Do(ctx, s.begin, key, func(tx driver.Tx[T]) error {
		l, err := s.table.open(op, key, tx)
		if err == nil {
			err = tx.Bound(ctx, maxPause, 0)
		}
		if err != nil {
			return err
		}
		return step(l)
	}))
}

// begin begins a transaction of one statement. On PostgreSQL a level above READ COMMITTED would
// only make concurrent claims fail. MariaDB reads the last commit at each level, and setting
// one costs a request.
func (s *SQL[T]) begin(ctx context.Context) (driver.Tx[T], error) {
	if s.lower.Load() {
		return transact.Preferably(s.db, driver.ReadCommitted)(ctx)
	}
	tx, err := s.db.Begin(ctx)
	if err == nil && tx.Dialect() == driver.Postgres {
		s.lower.Store(true)
	}
	return tx, err
}

// work is the content of a phase's transaction: the update that records the phase, and a
// function to call after the commit.
type work[T any] func(ctx context.Context, tx driver.Tx[T]) (u driver.IdempotencyUpdate, accept func(), err error)

// commit runs a phase's transaction until it is committed or refused. If the outcome is
// unknown, it reads the record, whose row the transaction in doubt had locked.
func (s *SQL[T]) commit(ctx context.Context, r *Request, name string, do work[T]) error {
	err := r.store.persist(ctx, func(int) (bool, error) {
		accept, unknown, err := s.transact(ctx, r, do)
		if err == nil {
			accept()
			return false, nil
		}
		if !unknown {
			return again(err), err
		}
		r.doubt = accept
		if failed := r.settle(ctx); failed != nil {
			return false, errors.Join(err, failed)
		}
		if _, done := r.points.find(name); done || r.last != nil {
			return false, nil
		}
		return true, ofKind(err, interlock.Uncertain, interlock.Retryable)
	})
	return r.noted(failure.About("run phase", r.id.Key, err))
}

// transact runs a phase's transaction once. If it may have been committed despite the error,
// unknown is true.
//
// The record is written last. If it were locked first, each duplicate of the request and the
// renewal of the lease would wait for the phase.
func (s *SQL[T]) transact(ctx context.Context, r *Request, do work[T]) (accept func(), unknown bool, err error) {
	// On a connection that is silent, the client waits for as long as the lease is renewed over others.
	beginning, expire := context.WithCancelCause(ctx)
	defer expire(nil)
	late := time.AfterFunc(r.store.options.Lease, func() { expire(errLateBegin) })
	defer late.Stop()
	tx, err := s.db.Begin(beginning)
	if err != nil {
		return nil, false, retryableIfLate(beginning, err)
	}
	sent := false
	defer func() {
		if !sent {
			_ = tx.Rollback(ctx) // if this fails the connection is closed
		}
	}()
	// A paused process must not lock rows forever.
	err = tx.Bound(beginning, r.store.options.Lease*2/3, 0)
	if !late.Stop() && err == nil {
		err = context.Cause(beginning)
	}
	if err != nil {
		return nil, false, retryableIfLate(beginning, ofKind(err, interlock.Uncertain, interlock.Retryable))
	}
	u, accept, err := do(ctx, tx)
	if err != nil {
		return nil, false, failure.Uncommitted(err)
	}
	l, err := s.table.open("run phase", r.id.Key, tx)
	if err != nil {
		return nil, false, err
	}
	done, err := l.update(ctx, u)
	switch {
	case err != nil:
		return nil, false, ofKind(err, interlock.Uncertain, interlock.Retryable)
	case !done:
		return nil, false, lost("run phase", r.id.Key)
	}
	sent = true
	ctx, cancel := context.WithTimeout(ctx, r.store.options.Lease)
	defer cancel()
	err = tx.Commit(ctx)
	return accept, errors.Is(err, interlock.ErrUncertain), err
}

var errLateBegin = errors.New("the transaction did not begin within the time of a lease")

// retryableIfLate makes err Retryable if the transaction did not begin in time.
func retryableIfLate(ctx context.Context, err error) error {
	if context.Cause(ctx) != errLateBegin {
		return err
	}
	return &interlock.Error{Op: "begin transaction", Kind: interlock.Retryable, Err: err}
}

func lost(op, key string) error {
	return &interlock.Error{Op: op, Name: key, Kind: interlock.Definite, Err: interlock.ErrLost}
}

// A Table is the table in which an [SQL] keeps records. The zero value is ready once
// [Table.Create] has created the table.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_idempotency". It
	// is at most 56 bytes, and is trusted: never take it from a request.
	Name string
}

var layout = sqltable.Layout{Part: "idempotency", Default: "interlock_idempotency",
	Tables: map[string]string{"requests": ""}, Indexes: map[string]string{"due": "_due", "old": "_old"}}

// open opens the table for op; errors name about.
func (t Table) open(op, about string, db driver.SQL) (ledger, error) {
	tables, err := layout.Open(op, about, db, t.Name)
	return ledger{tables}, err
}

// Create creates the table and its indexes unless they exist. Several processes may call it
// concurrently. It takes effect when the transaction commits. On MariaDB it takes effect at
// once, and commits what the transaction did before.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	l, err := t.open("create table", "", db)
	if err != nil {
		return err
	}
	return l.Tables.Create(ctx,
		`create table if not exists {requests} (
			scope {string 255} not null,
			operation {string 255} not null,
			`+key+` {string 255} not null,
			fingerprint {string 255} not null,
			owner {string 255} not null,
			attempt bigint not null,
			lease_until {time} not null,
			created_at {time} not null,
			input {bytes} not null,
			points {bytes} not null,{maria 
			finished tinyint not null,}
			finished_at {time},
			keep_until {time},
			status bigint not null,
			header {bytes} not null,
			answer {bytes} not null,
			digest {string 255} not null,
			primary key (scope, operation, `+key+`){maria ,
			key {due} (finished, lease_until),
			key {old} (finished, keep_until)}){maria  engine = InnoDB}`,
		`{pg create index if not exists {due} on {requests} (lease_until) where finished_at is null}`,
		`{pg create index if not exists {old} on {requests} (keep_until) where finished_at is not null}`)
}

// Sweep deletes up to limit finished requests whose retention has passed, and returns how many.
// It is for package guard/sweep. A [Reaper] also reports unfinished requests.
func (t Table) Sweep(ctx context.Context, db driver.SQL, limit int) (int, error) {
	l, err := t.open("remove requests", "", db)
	if err != nil {
		return 0, err
	}
	return l.remove(ctx, limit)
}
