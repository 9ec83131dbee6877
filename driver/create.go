package driver

import "context"

// Creator is a table, or several, that can be created where it does not exist.
type Creator interface {
	// Create creates it, unless it exists. Several processes may do it at once.
	Create(ctx context.Context, db SQL) error
}

// Create creates tables in one transaction of its own, unless they exist. Several
// processes may do it at once. After an Uncertain error it may be repeated.
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
