// Package prepared is the common part of participants that prepare branches in a SQL
// database: rules of names, outcomes of marks, and the end of a branch. It does no I/O.
package prepared

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"weak"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// A Session is the database session of one branch. All of its methods but Mark end the
// branch and free the session, even on an error.
type Session interface {
	// Mark inserts the mark of the branch, if the branch has changed anything.
	Mark(ctx context.Context) (changed bool, err error)
	// EndUnchanged ends a branch without changes.
	EndUnchanged(ctx context.Context) error
	// Prepare prepares a branch with a mark.
	Prepare(ctx context.Context) (driver.Vote, error)
	// CommitOne commits without preparing.
	CommitOne(ctx context.Context) error
	// Rollback rolls the branch back, also after ctx has ended.
	Rollback(ctx context.Context) error
}

// Branch implements driver.Preparing by a Session, which it ends once.
type Branch struct {
	session Session
	space   Space
	xid     driver.XID
	ended   bool
}

// NewBranch returns an open branch in a session.
func (s Space) NewBranch(x driver.XID, session Session) *Branch {
	return &Branch{session: session, space: s, xid: x}
}

// Prepare votes; see driver.Preparing.
func (b *Branch) Prepare(ctx context.Context) (driver.Vote, error) {
	if err := b.end("prepare"); err != nil {
		return driver.VoteNo, err
	}
	changed, err := b.session.Mark(ctx)
	switch {
	case err != nil:
		_ = b.session.Rollback(ctx)
		return driver.VoteNo, err
	case !changed:
		if err := b.session.EndUnchanged(ctx); err != nil {
			return driver.VoteNo, err
		}
		return driver.VoteReadOnly, nil
	}
	return b.session.Prepare(ctx)
}

// CommitOne commits without preparing; see driver.Preparing.
func (b *Branch) CommitOne(ctx context.Context) error {
	const op = "commit branch"
	if err := b.end(op); err != nil {
		return err
	}
	if ctx.Err() != nil {
		_ = b.session.Rollback(ctx)
		return b.space.Driver.Unsent(ctx, op, Name(b.xid))
	}
	return b.session.CommitOne(ctx)
}

// Abandon rolls back, also after ctx has ended; see driver.Preparing.
func (b *Branch) Abandon(ctx context.Context) error {
	if b.end("abandon") != nil {
		return nil
	}
	return b.session.Rollback(ctx)
}

// end marks the session as ended.
func (b *Branch) end(op string) error {
	if b.ended {
		return b.space.Driver.New(op, Name(b.xid), interlock.Bug, errors.New("the branch has ended"))
	}
	b.ended = true
	return nil
}

// The outcomes in a mark.
const (
	Committed  = "committed"
	RolledBack = "rolled back"
)

// Space is the set of branches of one namespace at one participant.
type Space struct {
	Driver    failure.Driver // the name in errors
	Namespace string
	Marks     string // the quoted table of marks
}

// Open checks the options of a participant. marks is a table, or schema.table, and pool
// reports that there is a pool.
func Open(ctx context.Context, d failure.Driver, dialect driver.Dialect, namespace, marks string, pool bool) (s Space, err error) {
	const op = "open participant"
	s = Space{Driver: d, Namespace: namespace}
	s.Marks, err = sqltable.Identifier(dialect, marks, "")
	switch probe := (driver.XID{Transaction: "-", Branch: namespace}); {
	case err != nil:
		return s, err
	case !pool:
		return s, d.New(op, namespace, interlock.Bug, errors.New("a pool is required"))
	case probe.Check() != nil || len(namespace) > driver.MaxXIDNamespace:
		return s, d.New(op, namespace, interlock.Bug,
			fmt.Errorf("%w: a namespace has 1 to %d letters, digits, - and _", interlock.ErrName, driver.MaxXIDNamespace))
	case ctx.Err() != nil:
		return s, d.Unsent(ctx, op, namespace)
	}
	return s, nil
}

// Name returns the name of a branch in errors.
func Name(x driver.XID) string { return x.Transaction + " " + x.Branch }

// Check rejects an invalid name, and a call whose context has ended.
func (s Space) Check(ctx context.Context, op string, x driver.XID) error {
	if err := x.Check(); err != nil {
		return s.Driver.New(op, Name(x), interlock.Bug, fmt.Errorf("%w: %w", interlock.ErrName, err))
	}
	if ctx.Err() != nil {
		return s.Driver.Unsent(ctx, op, Name(x))
	}
	return nil
}

// CommitFound returns the result of Commit for a branch that is not prepared, by the
// outcome of its mark; empty means no mark.
func (s Space) CommitFound(op string, x driver.XID, outcome string) error {
	switch outcome {
	case Committed:
		return nil
	case RolledBack:
		return s.heuristic(op, x, "it was rolled back")
	}
	return s.heuristic(op, x, "it is not prepared, and left no mark of having been committed")
}

// RollbackFound returns the result of Rollback for a branch that is not prepared.
func (s Space) RollbackFound(op string, x driver.XID, outcome string) error {
	if outcome == Committed {
		return s.heuristic(op, x, "it was committed")
	}
	return nil
}

func (s Space) heuristic(op string, x driver.XID, why string) error {
	return s.Driver.New(op, Name(x), interlock.Definite, fmt.Errorf("%w: %s", driver.ErrHeuristic, why))
}

// Slots bound the branches that occupy connections of a pool. The other connections finish prepared
// branches: branches that wait for rows of prepared ones could otherwise occupy all.
type Slots chan struct{}

var pools sync.Map // Slots by the weak pointer to their pool

// SlotsOf returns the slots of a pool, which all of its participants share; nil if size returns 0,
// no bound. One connection and an eighth of all are left to others.
func SlotsOf[P any](pool *P, size func(*P) int) Slots {
	if pool == nil {
		return nil
	}
	connections := size(pool)
	if connections <= 0 {
		return nil
	}
	key := weak.Make(pool)
	slots, known := pools.LoadOrStore(key, make(Slots, max(1, connections-1-connections/8)))
	if !known {
		runtime.AddCleanup(pool, func(key weak.Pointer[P]) { pools.Delete(key) }, key)
	}
	return slots.(Slots)
}

// Take waits for a slot. free gives it back, once.
func (s Slots) Take(ctx context.Context) (free func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	select {
	case s <- struct{}{}:
		return sync.OnceFunc(func() { <-s }), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
