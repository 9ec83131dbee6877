package prepared

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
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
