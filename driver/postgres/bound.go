package postgres

import (
	"context"
	"math"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// boundTx changes settings for the rest of the transaction, and only to less.
const boundTx = `
select set_config(name, least(ms, nullif((extract(epoch from current_setting(name)::interval) * 1000)::bigint, 0))::text, true)
from (values ('idle_in_transaction_session_timeout', $1::bigint), ('lock_timeout', $2::bigint), ('statement_timeout', $2::bigint)) as b (name, ms)
where ms is not null`

// Bound shortens what the transaction may wait for; see driver.Tx. A COMMIT is bounded
// in what it waits for, and not in how long its deferred triggers run.
func (t pgxTx) Bound(ctx context.Context, idle, statement time.Duration) error {
	return boundIn(ctx, t, idle, statement)
}

// Bound shortens what the transaction may wait for; see driver.Tx.
func (t stdTx) Bound(ctx context.Context, idle, statement time.Duration) error {
	return boundIn(ctx, t, idle, statement)
}

func boundIn(ctx context.Context, tx driver.SQL, idle, statement time.Duration) error {
	var longest *int64
	if statement > 0 {
		ms := timeout(statement)
		longest = &ms
	}
	_, err := tx.Exec(ctx, boundTx, timeout(idle), longest)
	return err
}

// timeout is d in milliseconds, as a timeout of the server: at least 1, since 0
// is none.
func timeout(d time.Duration) int64 { return min(max(1, d.Milliseconds()), math.MaxInt32) }
