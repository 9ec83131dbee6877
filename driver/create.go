package driver

import "context"

// Creator is one or more tables that can create themselves.
type Creator interface {
	// Create creates the tables that do not exist. Several processes may call it at once.
	Create(ctx context.Context, db SQL) error
}

// Create creates the tables that do not exist, in one transaction of its own. Several processes
// may call it at once. After an Uncertain error it may be repeated.
func Create[T any](ctx context.Context, db Beginner[T], tables ...Creator) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	for _, t := range tables {
		if err := t.Create(ctx, tx); err != nil {
			_ = tx.Rollback(context.WithoutCancel(ctx)) // the first error says more
			return err
		}
	}
	return tx.Commit(ctx)
}
