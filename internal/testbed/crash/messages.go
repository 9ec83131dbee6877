package crash

import (
	"context"
	"sync"

	"github.com/interlock-dev/interlock/driver"
)

// Journal adds a point before and after each append to j.
func Journal(j driver.Journal, at *Points) driver.Journal { return marking{j, at} }

type marking struct {
	driver.Journal
	at *Points
}

func (m marking) Append(ctx context.Context, appends []driver.Append) []error {
	m.at.Pass()
	defer m.at.Pass()
	return m.Journal.Append(ctx, appends)
}

// Preparer adds a point before and after each message to p that ends a phase: to prepare,
// to commit or to roll back. turns serializes the messages, with their points, of all
// participants that share it; nil does not.
func Preparer[B any](p driver.Preparer[B], at *Points, turns *sync.Mutex) driver.Preparer[B] {
	return preparer[B]{p, way{at, turns}}
}

type preparer[B any] struct {
	driver.Preparer[B]
	way way
}

func (p preparer[B]) Begin(ctx context.Context, x driver.XID) (B, driver.Preparing, error) {
	b, preparing, err := p.Preparer.Begin(ctx, x)
	return b, preparation{preparing, p.way}, err
}

func (p preparer[B]) Commit(ctx context.Context, x driver.XID) error {
	return p.way.pass(func() error { return p.Preparer.Commit(ctx, x) })
}

func (p preparer[B]) Rollback(ctx context.Context, x driver.XID) error {
	return p.way.pass(func() error { return p.Preparer.Rollback(ctx, x) })
}

type preparation struct {
	driver.Preparing
	way way
}

func (p preparation) Prepare(ctx context.Context) (vote driver.Vote, err error) {
	err = p.way.pass(func() (err error) { vote, err = p.Preparing.Prepare(ctx); return err })
	return vote, err
}

// way is the path of messages.
type way struct {
	at    *Points
	turns *sync.Mutex
}

func (w way) pass(send func() error) error {
	if w.turns != nil {
		w.turns.Lock()
		defer w.turns.Unlock()
	}
	w.at.Pass()
	defer w.at.Pass()
	return send()
}
