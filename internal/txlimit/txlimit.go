// Package txlimit makes a database end a transaction whose client has stopped.
// It does not end one whose client goes on sending statements.
package txlimit

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Idle makes the server roll the transaction back when its client sends nothing
// for limit. It changes a setting for the rest of the transaction, and only to
// less. MariaDB counts in whole seconds: limit is rounded up.
func Idle(ctx context.Context, tx driver.SQL, limit time.Duration) error {
	switch d := tx.Dialect(); d {
	case driver.Postgres:
		_, err := tx.Exec(ctx, lessIdle, milliseconds(limit))
		return err
	default:
		return &interlock.Error{Op: "bound transaction", Kind: interlock.Bug, Err: fmt.Errorf("SQL of %q is not spoken", string(d))}
	}
}

const lessIdle = `select set_config(name, least($1::bigint,
	nullif((extract(epoch from current_setting(name)::interval) * 1000)::bigint, 0))::text, true)
from (values ('idle_in_transaction_session_timeout')) as b (name)`

// milliseconds is d as a time-out of the server: at least 1, since 0 is none.
func milliseconds(d time.Duration) int64 { return min(max(1, d.Milliseconds()), math.MaxInt32) }
