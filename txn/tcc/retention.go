package tcc

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// sweepBatch is the number of holds that one statement of a [Sweep] removes.
const sweepBatch = 500

// Sweep returns the retention of a table of holds: [Table.Forget] removes holds that ended longer
// than age ago, and [Table.Overdue] reports holds past their time. An age of 0 means twice
// coordinator.DefaultKeep.
func Sweep[T any](name string, db driver.BeginnerAt[T], t Table, age time.Duration) coordinator.Sweep {
	if age == 0 {
		age = 2 * coordinator.DefaultKeep
	}
	return coordinator.Sweep{Name: name, Run: func(ctx context.Context, _ journal.Mark) (s coordinator.SweepResult, err error) {
		for {
			var n int
			err := transact.Do(ctx, transact.At(db, driver.ReadCommitted), name, func(tx driver.Tx[T]) (err error) {
				n, err = t.Forget(ctx, tx, max(age, t.longest()), sweepBatch)
				return err
			})
			if err != nil {
				return s, err
			}
			s.Removed += n
			if n < sweepBatch {
				break
			}
		}
		err = transact.Do(ctx, transact.At(db, driver.ReadCommitted), name, func(tx driver.Tx[T]) (err error) {
			s.Overdue, s.Oldest, err = t.Overdue(ctx, tx)
			return err
		})
		return s, err
	}}
}
