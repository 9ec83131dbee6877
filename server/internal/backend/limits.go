package backend

import (
	"cmp"
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/flow/limit"
)

// Limits connects to the rate limits of a backend: in a database those of a table, which is not
// created; disconnect ends that. A backend without limits is refused with a [*URLError].
// The context bounds the opening only.
func (t Target) Limits(ctx context.Context, table limit.Table) (l driver.LimitInspector, disconnect func(), err error) {
	refusal := &URLError{Reason: t.Kind() + " keeps no rate limits; name a redis://, postgres:// or mysql:// URL with --backend"}
	if !t.Has(backend.Tables) && t.Kind() != "redis" {
		return nil, nil, refusal
	}
	b, l, err := open(ctx, t, func(b *backend.Backend) (driver.LimitInspector, error) {
		if db, ok := b.SQL(); ok {
			table.Prefix = cmp.Or(table.Prefix, t.Setting("prefix"))
			return limit.FromTable(db, table).(driver.LimitInspector), nil
		}
		if l, ok := b.Limiter(table.Prefix); ok {
			return l.(driver.LimitInspector), nil
		}
		return nil, refusal
	})
	return l, closing(b), err
}
