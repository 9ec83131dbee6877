package databases

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// LostCommits is a database that loses the answer of a commit if Lose returns true.
type LostCommits[T any] struct {
	driver.Beginner[T]
	Lose func() bool
}

// Begin begins a transaction whose commit may have no answer.
func (l LostCommits[T]) Begin(ctx context.Context) (driver.Tx[T], error) {
	tx, err := l.Beginner.Begin(ctx)
	return lostCommit[T]{tx, l.Lose}, err
}

type lostCommit[T any] struct {
	driver.Tx[T]
	lose func() bool
}

func (t lostCommit[T]) Commit(ctx context.Context) error {
	err := t.Tx.Commit(ctx)
	if err == nil && t.lose() {
		err = &interlock.Error{Op: "commit", Kind: interlock.Uncertain, Err: errors.New("no answer")}
	}
	return err
}
