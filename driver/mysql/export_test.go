package mysql

import (
	"context"
	"time"
)

// Sweep removes the rows that nobody has used for so long.
func (t *Table) Sweep(ctx context.Context, after time.Duration) error { return t.sweep(ctx, after) }
