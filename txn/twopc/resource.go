package twopc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// A Resource is a named participant in which transactions open branches. B is the type of a branch,
// such as pgx.Tx. [Define] creates it.
type Definition[B any] struct {
	name     string
	preparer driver.Preparer[B]
}

// Define names a participant with 1 to driver.MaxXIDBranch letters, digits, - and _. The name is
// unique in the engine and the same in all processes and over time, because branches in doubt
// contain it.
func Define[B any](name string, p driver.Preparer[B]) Definition[B] { return Definition[B]{name, p} }

func (r Definition[B]) defined() (string, driver.Participant) { return r.name, r.preparer }

// Finisher names a participant, as [Define] does, whose branches this process finishes and lists
// but does not open. It is for services and commands that complete transactions of others.
func Finisher(name string, p driver.Participant) Defined { return finisher{name, p} }

type finisher struct {
	name        string
	participant driver.Participant
}

func (f finisher) defined() (string, driver.Participant) { return f.name, f.participant }

// Join opens the branch of a transaction at this participant, at most one. Its work becomes
// visible when the transaction commits, and is lost otherwise. Use the branch until the function
// passed to Run returns.
func (r Definition[B]) Join(ctx context.Context, t *T) (B, error) {
	var none B
	if _, err := t.engine.participant(r.name); err != nil {
		return none, err
	}
	if err := t.reserve(r.name); err != nil {
		return none, err
	}
	b, p, err := r.preparer.Begin(ctx, t.run.xid(r.name))
	if err = t.open(ctx, r.name, p, err); err != nil {
		return none, err
	}
	return b, nil
}

// T is a transaction while its function runs. It is safe for concurrent use.
type T struct {
	engine *Engine
	run    run

	mu       sync.Mutex
	closed   bool
	branches []*openBranch // in the order of Join
}

// openBranch is a branch of a running transaction.
type openBranch struct {
	name      string
	preparing driver.Preparing // nil while it is being opened
}

// XID returns the XID of the branch at a resource, joined or not.
func (t *T) XID(resource string) driver.XID { return t.run.xid(resource) }

// reserve adds a branch before it is opened.
func (t *T) reserve(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return failure.Bug("join", name, "the transaction's function has returned")
	}
	for _, b := range t.branches {
		if b.name == name {
			return failure.Bug("join", name, "the transaction has already joined it: use the branch of the first call")
		}
	}
	t.branches = append(t.branches, &openBranch{name: name})
	return nil
}

// open completes a reserved branch, or removes it after an error. A branch that was opened after the
// function had returned is abandoned.
func (t *T) open(ctx context.Context, name string, p driver.Preparing, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.branches, func(b *openBranch) bool { return b.name == name })
	if err == nil && !t.closed {
		t.branches[i].preparing = p
		return nil
	}
	t.branches = slices.Delete(t.branches, i, i+1)
	if err != nil {
		return failure.About("join", name, err)
	}
	clean, cancel := t.engine.clean(ctx)
	defer cancel()
	err = errors.New("the transaction's function has returned meanwhile")
	if left := p.Abandon(clean); left != nil {
		err = fmt.Errorf("%w, and the branch could not be abandoned: %w", err, left)
	}
	return bug("join", name, err)
}

// close rejects further branches, and returns the open ones.
func (t *T) close() []*openBranch {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	var prepared []*openBranch
	for _, b := range t.branches {
		if b.preparing != nil {
			prepared = append(prepared, b)
		}
	}
	return prepared
}
