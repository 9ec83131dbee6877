package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Participant keeps numbers under keys and takes part in two-phase commit, in
// memory: prepared branches end only with the process. It is the executable
// specification of driver.Participant and driver.Preparer: every method is one step
// under a mutex. Use [NewParticipant].
type Participant struct {
	mu       sync.Mutex
	numbers  map[string]int64
	locks    map[string]driver.XID // by key: the branch that has read or written it
	branches map[driver.XID]*Branch
	fates    map[driver.XID]fate // of ended branches; never removed
}

// fate is the outcome of a branch.
type fate string

const (
	committed  fate = "committed"
	rolledBack fate = "rolled back"
)

// Branch is a branch of a distributed transaction in a [Participant]. It reserves what
// it reads and writes until it has ended: another branch gets an *interlock.HeldError
// at once. It is safe for concurrent use.
type Branch struct {
	participant *Participant
	xid         driver.XID
	writes      map[string]int64
	prepared    time.Time // zero while it is in use
}

var _ driver.Preparer[*Branch] = (*Participant)(nil)
var _ driver.Preparing = (*Branch)(nil)

// NewParticipant returns one in which every number is 0.
func NewParticipant() *Participant {
	return &Participant{numbers: map[string]int64{}, locks: map[string]driver.XID{},
		branches: map[driver.XID]*Branch{}, fates: map[driver.XID]fate{}}
}

// Get returns the number under a key, after all committed branches.
func (p *Participant) Get(key string) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.numbers[key]
}

// Restart simulates a crash of the server: it removes branches that were not
// prepared.
func (p *Participant) Restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for x, b := range p.branches {
		if b.prepared.IsZero() {
			p.finish(x, rolledBack)
		}
	}
}

// Begin opens a branch; see driver.Preparer. An XID can be used for one branch only.
func (p *Participant) Begin(ctx context.Context, x driver.XID) (*Branch, driver.Preparing, error) {
	const op = "begin branch"
	if err := asked(ctx, op, x); err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.branches[x] != nil || p.fates[x] != "" {
		return nil, nil, fail.New(op, x.Transaction, interlock.Bug, fmt.Errorf("the branch %q was used before", x.Branch))
	}
	b := &Branch{participant: p, xid: x, writes: map[string]int64{}}
	p.branches[x] = b
	return b, b, nil
}

// asked returns the error for a call with an invalid XID or an ended ctx.
func asked(ctx context.Context, op string, x driver.XID) error {
	if err := x.Check(); err != nil {
		return fail.New(op, x.Transaction, interlock.Bug, err)
	}
	return asking(ctx, op, x.Transaction)
}

// Commit publishes the changes of a prepared branch; see driver.Participant.
func (p *Participant) Commit(ctx context.Context, x driver.XID) error {
	const op = "commit branch"
	if err := asked(ctx, op, x); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch b := p.branches[x]; {
	case b != nil && b.prepared.IsZero():
		return fail.New(op, x.Transaction, interlock.Bug, errors.New("it is not prepared"))
	case b != nil:
		p.finish(x, committed)
		return nil
	case p.fates[x] == committed:
		return nil
	}
	return fail.New(op, x.Transaction, interlock.Definite, fmt.Errorf("%w: no record of it exists", driver.ErrHeuristic))
}

// Rollback discards the changes of a branch, and prevents a later Prepare of a
// branch that does not exist yet; see driver.Participant.
func (p *Participant) Rollback(ctx context.Context, x driver.XID) error {
	const op = "roll back branch"
	if err := asked(ctx, op, x); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fates[x] == committed {
		return fail.New(op, x.Transaction, interlock.Definite, fmt.Errorf("%w: it was committed", driver.ErrHeuristic))
	}
	p.finish(x, rolledBack)
	return nil
}

// InDoubt lists the prepared branches in the order of their names.
func (p *Participant) InDoubt(ctx context.Context) ([]driver.InDoubt, error) {
	if ctx.Err() != nil {
		return nil, fail.Unsent(ctx, "list branches", "in doubt")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []driver.InDoubt
	for x, b := range p.branches {
		if !b.prepared.IsZero() {
			all = append(all, driver.InDoubt{XID: x, Since: b.prepared})
		}
	}
	slices.SortFunc(all, func(a, b driver.InDoubt) int {
		return strings.Compare(a.XID.Transaction+"\x00"+a.XID.Branch, b.XID.Transaction+"\x00"+b.XID.Branch)
	})
	return all, nil
}

// finish ends a branch, which may not exist, and frees its keys.
func (p *Participant) finish(x driver.XID, f fate) {
	if b := p.branches[x]; b != nil && f == committed {
		maps.Copy(p.numbers, b.writes)
	}
	delete(p.branches, x)
	p.fates[x] = f
	maps.DeleteFunc(p.locks, func(_ string, holder driver.XID) bool { return holder == x })
}

// Get reads a number.
func (b *Branch) Get(key string) (int64, error) {
	var n int64
	err := b.work("read", key, func() { n = b.number(key) })
	return n, err
}

// Set writes a number.
func (b *Branch) Set(key string, n int64) error {
	return b.work("write", key, func() { b.writes[key] = n })
}

// Add adds to a number, and returns the sum.
func (b *Branch) Add(key string, delta int64) (int64, error) {
	var n int64
	err := b.work("write", key, func() { n = b.number(key) + delta; b.writes[key] = n })
	return n, err
}

func (b *Branch) number(key string) int64 {
	if n, ours := b.writes[key]; ours {
		return n
	}
	return b.participant.numbers[key]
}

// work locks the key and runs do under the mutex.
func (b *Branch) work(op, key string, do func()) error {
	p := b.participant
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := b.open(op); err != nil {
		return err
	}
	if holder, held := p.locks[key]; held && holder != b.xid {
		return &interlock.HeldError{Name: key, Owner: holder.Transaction}
	}
	p.locks[key] = b.xid
	do()
	return nil
}

// open returns an error if the branch is no longer in use.
func (b *Branch) open(op string) error {
	switch {
	case b.participant.branches[b.xid] != b:
		return fail.New(op, b.xid.Transaction, interlock.Definite, errors.New("the branch has ended"))
	case !b.prepared.IsZero():
		return fail.New(op, b.xid.Transaction, interlock.Bug, errors.New("the branch is prepared"))
	}
	return nil
}

// Prepare returns the branch's vote: read-only if it has written nothing; see
// driver.Preparing.
func (b *Branch) Prepare(ctx context.Context) (driver.Vote, error) {
	const op = "prepare branch"
	if err := asked(ctx, op, b.xid); err != nil {
		return driver.VoteNo, err
	}
	b.participant.mu.Lock()
	defer b.participant.mu.Unlock()
	if err := b.open(op); err != nil {
		return driver.VoteNo, err
	}
	if len(b.writes) == 0 {
		b.participant.finish(b.xid, rolledBack)
		return driver.VoteReadOnly, nil
	}
	b.prepared = time.Now()
	return driver.VoteYes, nil
}

// CommitOne commits without preparing; see driver.Preparing.
func (b *Branch) CommitOne(ctx context.Context) error {
	const op = "commit branch in one phase"
	if err := asked(ctx, op, b.xid); err != nil {
		return err
	}
	b.participant.mu.Lock()
	defer b.participant.mu.Unlock()
	if err := b.open(op); err != nil {
		return err
	}
	b.participant.finish(b.xid, committed)
	return nil
}

// Abandon discards the changes of a branch that is still in use; see
// driver.Preparing.
func (b *Branch) Abandon(context.Context) error {
	b.participant.mu.Lock()
	defer b.participant.mu.Unlock()
	if b.open("abandon branch") == nil {
		b.participant.finish(b.xid, rolledBack)
	}
	return nil
}
