package percolator

import (
	"bytes"
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
)

// resolve finds the fate of the transaction whose lock l is at key, and applies it there.
// If it is alive, it can commit only above push; 0 changes nothing. The outcome is
// committed, aborted, alive, or done if the lock is gone meanwhile.
func (db *DB) resolve(ctx context.Context, key string, l *lock, push Timestamp) (answer, error) {
	primary, err := db.place("resolve lock", l.Primary)
	if err != nil {
		return answer{}, err
	}
	if db.places[primary].id != l.Store {
		return answer{}, failed("resolve lock", key, interlock.Definite,
			fmt.Errorf("%w: the primary %q is in another store than %q leads to", ErrStores, l.Primary, db.places[primary].prefix))
	}
	here, err := db.place("resolve lock", key)
	if err != nil {
		return answer{}, err
	}
	fate, err := db.ask(ctx, primary, l, push, func() (bool, error) {
		c := &cell{key: key}
		err := persist(ctx, func() error { return db.places[here].load(ctx, []*cell{c}) })
		return c.record.heldBy(l.Start), err
	})
	if err != nil || fate.outcome == alive || fate.outcome == done {
		return fate, err
	}
	_, err = db.places[here].one(ctx, key, func(r record, key string) (record, answer) {
		if fate.outcome == committed {
			return commit(r, key, l.Start, fate.at)
		}
		return rollback(r, l.Start)
	})
	return fate, err
}

// ask checks a transaction at its primary. If the primary lock may still arrive, or readers have
// delayed the commit for too long, it waits while held returns true: a transaction refused at its
// primary leaves no trace there.
func (db *DB) ask(ctx context.Context, primary int, l *lock, push Timestamp, held func() (bool, error)) (answer, error) {
	for n := 1; ; n++ {
		now, err := db.now(ctx)
		if err != nil {
			return answer{}, err
		}
		a, err := db.places[primary].one(ctx, l.Primary, func(r record, key string) (record, answer) {
			return check(r, key, question{lock: l, now: now, push: push})
		})
		switch {
		case err != nil:
			return a, err
		case a.outcome == notPrimary:
			return a, because("resolve lock", l.Primary, a)
		case a.outcome != missing && a.outcome != starving:
			return a, nil
		case !waits.Wait(ctx, n):
			return a, failed("resolve lock", l.Primary, interlock.Retryable, context.Cause(ctx))
		}
		if still, err := held(); err != nil || !still {
			return answer{}, err
		}
	}
}

// read reads a record in the snapshot until no lock blocks it. Cells stay fresh for a later write.
func (tx *Tx) read(ctx context.Context, p place, c *cell) (answer, error) {
	for {
		if !c.fresh {
			if err := persist(ctx, func() error { return p.load(ctx, []*cell{c}) }); err != nil {
				return answer{}, err
			}
		}
		a := read(c.record, tx.start, tx.passed)
		switch a.outcome {
		case done:
			a.value = bytes.Clone(a.value) // the record has all versions
			return a, nil
		case locked:
			if err := tx.settle(ctx, c, a.lock); err != nil {
				return a, err
			}
		default:
			return a, because("read", c.key, a)
		}
	}
}

// settle resolves a lock, or adds a living transaction to passed.
func (tx *Tx) settle(ctx context.Context, c *cell, l *lock) error {
	fate, err := tx.db.resolve(ctx, c.key, l, tx.start)
	if err != nil {
		return err
	}
	if fate.outcome == alive {
		tx.passed[l.Start] = true
		return nil
	}
	c.fresh = false
	return nil
}
