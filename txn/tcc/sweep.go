package tcc

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Ask is a question to the coordinator: what becomes of a branch? It is
// [Engine.Decide], or a way there.
type Ask func(ctx context.Context, transaction, branch string) (Decision, error)

// ref is the key of a hold.
type ref struct{ transaction, branch string }

// due lists holds that are to be asked about, the oldest first. It locks nothing.
func (t Table) due(ctx context.Context, db driver.SQL, limit int) ([]ref, error) {
	l, err := t.open("sweep", db)
	if err != nil {
		return nil, err
	}
	all, err := l.refs(ctx, `where ask_ms <= {now} order by ask_ms limit ?`, limit)
	return all, about("sweep", l.holds, err)
}

// refs lists holds.
func (l *ledger) refs(ctx context.Context, which string, args ...any) (all []ref, err error) {
	err = l.Query(ctx, l.text(`select transaction_id, branch from {holds} `+which), args, func(scan func(...any) error) error {
		var r ref
		err := scan(&r.transaction, &r.branch)
		all = append(all, r)
		return err
	})
	return all, err
}

// postpone makes a hold one that is to be asked about after a while.
func (t Table) postpone(ctx context.Context, db driver.SQL, o ref, wait time.Duration) error {
	l, err := t.open("sweep", db)
	if err != nil {
		return err
	}
	_, err = l.exec(ctx, `update {holds} set ask_ms = {now} + ? where transaction_id = ? and branch = ? and state = 'held'`,
		wait.Milliseconds(), o.transaction, o.branch)
	return about("sweep", o.transaction, err)
}

// Overdue counts the holds whose time is over, and tells for how long the oldest one's
// is, by the database's clock: a gauge. What stays there is confirmed but not
// told so, or nobody sweeps, or the coordinator cannot be asked.
func (t Table) Overdue(ctx context.Context, db driver.SQL) (holds int, oldest time.Duration, err error) {
	l, err := t.open("count overdue holds", db)
	if err != nil {
		return 0, 0, err
	}
	var n, since int64
	_, err = l.row(ctx, `select count(*), coalesce(max({now} - until_ms), 0) from {holds} where ask_ms is not null and until_ms <= {now}`,
		nil, &n, &since)
	return int(n), time.Duration(since) * time.Millisecond, about("count overdue holds", l.holds, err)
}

// Forget removes what was confirmed, cancelled or refused longer ago than age, by the
// database's clock, at most limit rows, and returns how many. age is at least Longest:
// any try that may still come is then too late to be let in. A confirmation that is
// repeated after that would be told as a violation, so let age be longer than
// transactions are unfinished.
func (t Table) Forget(ctx context.Context, db driver.SQL, age time.Duration, limit int) (int, error) {
	const op = "forget holds"
	if age < t.longest() || limit < 1 {
		return 0, failure.Bug(op, t.Name, "after %v, %d rows: it can be after %v, and 1 row or more", age, limit, t.longest())
	}
	l, err := t.open(op, db)
	if err != nil {
		return 0, err
	}
	n, err := l.forget(ctx, `state <> 'held' and changed_ms < {now} - ?`, age.Milliseconds(), limit)
	return n, about(op, l.holds, err)
}

// forget looks without locks and deletes by key: on MariaDB deleting by age would lock
// all rows and gaps that it passes by, and keep everybody from trying.
func (l *ledger) forget(ctx context.Context, old string, age int64, limit int) (n int, err error) {
	all, err := l.refs(ctx, `where `+old+` limit ?`, age, limit)
	const atOnce = 200
	for some := range slices.Chunk(all, atOnce) {
		if err != nil {
			break
		}
		var args []any
		for _, r := range some {
			args = append(args, r.transaction, r.branch)
		}
		these := strings.TrimSuffix(strings.Repeat(`transaction_id = ? and branch = ? or `, len(some)), " or ")
		var gone int64
		gone, err = l.exec(ctx, `delete from {holds} where (`+these+`) and `+old, append(args, age)...)
		n += int(gone)
	}
	return n, err
}
