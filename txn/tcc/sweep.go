package tcc

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Ask returns the coordinator's decision on a branch. It is [Engine.Decide], or calls it.
type Ask func(ctx context.Context, transaction, branch string) (Decision, error)

// ref is the key of a hold.
type ref struct{ transaction, branch string }

// due lists expired holds, the oldest first. It locks nothing.
func (t Table) due(ctx context.Context, db driver.SQL, limit int) ([]ref, error) {
	l, err := t.open("sweep", "", db)
	if err != nil {
		return nil, err
	}
	return sqltable.List(ctx, l.Tables, `select transaction_id, branch from {holds} where ask_ms <= {millis now} order by ask_ms limit ?`,
		[]any{limit}, func(r *ref) []any { return []any{&r.transaction, &r.branch} })
}

// postpone sets when a sweep asks for the decision on a hold again.
func (t Table) postpone(ctx context.Context, db driver.SQL, o ref, wait time.Duration) error {
	l, err := t.open("sweep", o.transaction, db)
	if err != nil {
		return err
	}
	_, err = l.Exec(ctx, `update {holds} set ask_ms = {millis now} + ? where transaction_id = ? and branch = ? and state = 'held'`,
		wait.Milliseconds(), o.transaction, o.branch)
	return err
}

// Overdue returns the number of holds whose time is over, and the age of the oldest, by the
// database's clock. If it stays above zero, confirmations do not arrive, no sweep runs, or the
// coordinator is unreachable.
func (t Table) Overdue(ctx context.Context, db driver.SQL) (holds int, oldest time.Duration, err error) {
	l, err := t.open("count overdue holds", "", db)
	if err != nil {
		return 0, 0, err
	}
	var n, since int64
	_, err = l.Row(ctx, `select count(*), coalesce(max({millis now} - until_ms), 0) from {holds} where ask_ms is not null and until_ms <= {millis now}`,
		nil, &n, &since)
	return int(n), time.Duration(since) * time.Millisecond, err
}

// Forget removes holds that were confirmed, cancelled or refused longer ago than age, by the
// database's clock. It removes at most limit rows and returns their number. age is at least Longest,
// so that a try which arrives later is refused as too late. A confirmation that is repeated later is
// a violation, so choose age longer than transactions remain unfinished.
func (t Table) Forget(ctx context.Context, db driver.SQL, age time.Duration, limit int) (int, error) {
	const op = "forget holds"
	if age < t.longest() || limit < 1 {
		return 0, failure.Bug(op, t.Name, "an age of %v and a limit of %d: they must be at least %v and 1", age, limit, t.longest())
	}
	l, err := t.open(op, "", db)
	if err != nil {
		return 0, err
	}
	n, err := l.Delete(ctx, sqltable.Deletion{Table: "holds", Key: "transaction_id, branch",
		Where: `state <> 'held' and changed_ms < {millis now} - ?`, Args: []any{age.Milliseconds()}, Limit: limit})
	return int(n), err
}
