package tcc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/txn/branch"
)

// Holds is a [Table] as a participant, with transactions of its own. T is the type the
// user's code works with, such as pgx.Tx or *sql.Tx. It is safe for concurrent use.
type Holds[T any] struct {
	DB    driver.BeginnerAt[T]
	Table Table
	// Confirmed runs in the transaction that confirms a hold, such as to record the booking;
	// nil does nothing. [branch.From] has the branch. One call of each hold is committed. After
	// an error nothing is confirmed, and the call is repeated until it succeeds.
	Confirmed func(ctx context.Context, tx T, w Want) error
	// Again is the pause before a sweep asks again about a hold that will be confirmed; 0
	// means a minute.
	Again time.Duration
	// Idle bounds the time between two statements of a transaction, also within Confirmed: see
	// barrier.Table. It is at least a second; 0 means 15 seconds, below zero keeps the
	// session's setting.
	Idle time.Duration
}

// Take returns the resource whose tries hold units of an item, and whose confirmations remove
// them: seats, or money that leaves an account.
func (h Holds[T]) Take() Resource[Want, Want] { return resource[T]{h, h.Table.Take} }

// Give returns the resource whose tries announce units of an item, and whose confirmations add
// them: money that arrives at an account.
func (h Holds[T]) Give() Resource[Want, Want] { return resource[T]{h, h.Table.Give} }

// resource implements Take or Give.
type resource[T any] struct {
	holds Holds[T]
	try   func(ctx context.Context, db driver.SQL, w Want, until time.Time) error
}

// Try commits a refusal too, so that repeated calls get it.
func (r resource[T]) Try(ctx context.Context, w Want, until time.Time) (Want, error) {
	var refusal error
	err := r.holds.within(ctx, func(tx driver.Tx[T]) error {
		err := r.try(ctx, tx, w, until)
		if class, _ := branch.ClassOf(err); err != nil && class == branch.ClassFail {
			refusal = err
			return nil
		}
		return err
	})
	if err != nil {
		return w, err
	}
	return w, refusal
}

func (r resource[T]) Confirm(ctx context.Context, _ Want, _ Want) error {
	return r.holds.within(ctx, func(tx driver.Tx[T]) error {
		w, fresh, err := r.holds.Table.Confirm(ctx, tx)
		if err == nil && fresh && r.holds.Confirmed != nil {
			if err = r.holds.Confirmed(ctx, tx.Native(), w); err != nil {
				err = tx.Classify(err)
			}
		}
		return err
	})
}

func (r resource[T]) Cancel(ctx context.Context, _ Want, _ *Want) error { return r.holds.cancel(ctx) }

func (h Holds[T]) cancel(ctx context.Context) error {
	return h.within(ctx, func(tx driver.Tx[T]) error {
		_, _, err := h.Table.Cancel(ctx, tx)
		return err
	})
}

// defaultIdle equals barrier.DefaultIdle.
const defaultIdle = 15 * time.Second

// within runs work in a transaction, and classifies the database's errors. After an error nothing was
// done, unless the answer to COMMIT was lost.
func (h Holds[T]) within(ctx context.Context, work func(tx driver.Tx[T]) error) error {
	if h.DB == nil {
		return branch.Retry(failure.Bug("begin", branch.From(ctx).Transaction, "there is no database"))
	}
	err := transact.Do(ctx, transact.At(h.DB, driver.ReadCommitted), branch.From(ctx).Transaction, func(tx driver.Tx[T]) error {
		if h.Idle >= 0 {
			if err := tx.Bound(ctx, max(cmp.Or(h.Idle, defaultIdle), time.Second), 0); err != nil {
				return err
			}
		}
		return work(tx)
	})
	if class, _ := branch.ClassOf(err); err == nil || class != branch.ClassUnknown || interlock.Kind(err) == interlock.Uncertain {
		return err
	}
	return branch.Retry(err)
}

// SweepResult is the result of a sweep.
type SweepResult struct {
	Freed int // holds that were cancelled
	Kept  int // holds that will be confirmed
}

// Sweep asks for the decision on up to limit holds whose time is over by the database's clock,
// the oldest first. It cancels those that will not be confirmed. It releases nothing without a
// decision. Call it every few seconds, as [Holds.Watch] does. Several sweeps may run
// concurrently.
//
// It stops at the first temporary error, such as an unreachable coordinator; the next sweep
// begins with the other holds, which may have another coordinator. A problem of a single hold is
// reported and does not affect the others.
func (h Holds[T]) Sweep(ctx context.Context, ask Ask, limit int) (s SweepResult, err error) {
	if ask == nil || limit < 1 {
		return s, failure.Bug("sweep", "", "it needs a function Ask and a limit of at least 1, not %d", limit)
	}
	var all []ref
	err = h.within(ctx, func(tx driver.Tx[T]) error {
		all, err = h.Table.due(ctx, tx, limit)
		return err
	})
	for _, o := range all {
		failed := h.sweep(ctx, ask, o, &s)
		err = errors.Join(err, failed)
		if failed != nil && (ctx.Err() != nil || temporary(failed)) {
			return s, err
		}
	}
	return s, err
}

// The pause between two sweeps of [Holds.Watch], and the limit of each.
const (
	watchEvery = 2 * time.Second
	watchLimit = 100
)

// Watch sweeps until ctx ends, and returns its cause, or the error of a sweep. A txn.Runtime runs
// it for the resources of its engine, and restarts it after an error.
func (h Holds[T]) Watch(ctx context.Context, ask Ask) error {
	for {
		s, err := h.Sweep(ctx, ask, watchLimit)
		if err != nil {
			return err
		}
		if s.Freed > 0 && s.Freed+s.Kept == watchLimit {
			continue // more may be due
		}
		if !backoff.Sleep(ctx, watchEvery) {
			return context.Cause(ctx)
		}
	}
}

func (r resource[T]) watch(ctx context.Context, ask Ask) error { return r.holds.Watch(ctx, ask) }

// sweep asks for the decision on one hold. A failure does not stop the sweep of others.
func (h Holds[T]) sweep(ctx context.Context, ask Ask, o ref, s *SweepResult) error {
	decision, err := ask(ctx, o.transaction, o.branch)
	if err == nil && decision == Cancel {
		err = h.cancel(branch.With(ctx, branch.Call{Transaction: o.transaction, Branch: o.branch, Operation: branch.Cancel}))
		if err == nil {
			s.Freed++
			return nil
		}
	}
	again := h.Again
	if again <= 0 {
		again = time.Minute
	}
	switch {
	case err == nil:
		s.Kept++
	case temporary(err):
		again = 0 // it stays due, behind those that are
	}
	return errors.Join(err, h.within(ctx, func(tx driver.Tx[T]) error { return h.Table.postpone(ctx, tx, o, again) }))
}

// temporary reports whether a retry may succeed.
func temporary(err error) bool {
	kind := interlock.Kind(err)
	return kind == interlock.Uncertain || kind == interlock.Retryable
}

// Want is a number of units of an item, 1 to driver.MaxQuantity.
type Want struct {
	Item string `json:"item"` // 1 to driver.MaxName bytes
	N    int64  `json:"n"`
}

// The states of a hold. All but held are final.
const (
	stateHeld      = "held"
	stateConfirmed = "confirmed"
	stateCancelled = "cancelled"
	stateBlocked   = "blocked" // cancelled before it was tried
	stateShort     = "short"   // refused: too few units
	stateUnknown   = "unknown" // refused: no such item
	stateLate      = "late"    // refused: it had expired
	stateFar       = "far"     // refused: its duration is too long
)

var refusals = map[string]string{
	stateShort:   "there are too few, or there would be too many",
	stateUnknown: "no such item is known: set its capacity first",
	stateLate:    "the time of the hold was over when it was tried",
	stateFar:     "the hold would last longer than the table allows",
}

// holdKind is what a hold does to its item.
type holdKind struct {
	name string
	// try holds n units if possible; confirm or cancel follows. All have the parameters n, item, n.
	try, confirm, cancel string
}

// holdKinds are single statements, so that the compared row is the changed one.
var holdKinds = map[string]holdKind{
	"take": {
		name:    "take",
		try:     `update {items} set held = held + ? where item = ? and held + sold + ? <= capacity`,
		confirm: `update {items} set held = held - ?, sold = sold + ? where item = ?`,
		cancel:  `update {items} set held = held - ? where item = ?`,
	},
	"give": {
		name:    "give",
		try:     `update {items} set announced = announced + ? where item = ? and capacity + announced + ? <= ` + quantity,
		confirm: `update {items} set announced = announced - ?, capacity = capacity + ? where item = ?`,
		cancel:  `update {items} set announced = announced - ? where item = ?`,
	},
}

// Take tries to hold units for the branch of [branch.From] until a time. A refusal is a
// [*RefusedError] in a branch.Fail, and is stored if the transaction commits. A branch that was
// cancelled is refused with [ErrCancelled]. A repeated call extends the hold, if the time is later.
// Another request under the branch's name is a Bug, and nothing is done.
func (t Table) Take(ctx context.Context, db driver.SQL, w Want, until time.Time) error {
	return t.try(ctx, db, holdKinds["take"], w, until)
}

// Give announces units that the branch of [branch.From] adds to the item once it is
// confirmed; errors are those of [Table.Take].
func (t Table) Give(ctx context.Context, db driver.SQL, w Want, until time.Time) error {
	return t.try(ctx, db, holdKinds["give"], w, until)
}

// row is the stored state of a hold.
type row struct {
	calls      int64 // after the first
	state, way string
	item       string
	n          int64
	until, now int64 // ms since 1970
}

func (t Table) try(ctx context.Context, db driver.SQL, as holdKind, w Want, until time.Time) error {
	const op = "try"
	c, err := callOf(ctx, op)
	if err != nil {
		return err
	}
	if err := driver.CheckName(op, "an item", w.Item, driver.MaxName); err != nil {
		return err
	}
	if w.N < 1 || w.N > driver.MaxQuantity {
		return failure.Bug(op, w.Item, "%d units: 1 to %d are allowed", w.N, int64(driver.MaxQuantity))
	}
	l, err := t.open(op, w.Item, db)
	if err != nil {
		return err
	}
	recorded, err := l.record(ctx, c, as, w, until.UnixMilli())
	switch {
	case err == nil && recorded.calls == 0:
		recorded.state, err = l.hold(ctx, c, as, w, t.judge(recorded))
	case err == nil && recorded.state == stateHeld && recorded.matches(as, w):
		err = l.prolong(ctx, c, recorded, until.UnixMilli(), t.longest().Milliseconds())
	}
	if err != nil {
		return err
	}
	return recorded.answer(c, as, w)
}

// record inserts the row of a hold, or finds the existing one, and locks it.
func (l ledger) record(ctx context.Context, c branch.Call, as holdKind, w Want, until int64) (recorded row, err error) {
	_, err = l.Row(ctx, `insert into {holds} {as present} (transaction_id, branch, way, item, n, state, was, calls, until_ms, ask_ms, changed_ms)
		values (?, ?, ?, ?, ?, 'held', 'none', 0, ?, ?, {millis now})
		{or transaction_id, branch} calls = {old calls} + 1
		returning calls, state, way, item, n, until_ms, {millis now}`,
		[]any{c.Transaction, c.Branch, as.name, w.Item, w.N, until, until},
		&recorded.calls, &recorded.state, &recorded.way, &recorded.item, &recorded.n, &recorded.until, &recorded.now)
	return recorded, err
}

// prolong gives an existing hold a later expiry, at most the longest.
func (l ledger) prolong(ctx context.Context, c branch.Call, recorded row, until, longest int64) error {
	if until <= recorded.until || until > recorded.now+longest {
		return nil
	}
	_, err := l.Exec(ctx, `update {holds} set until_ms = ?, ask_ms = ? where transaction_id = ? and branch = ?`,
		until, until, c.Transaction, c.Branch)
	return err
}

// matches reports whether the hold is the requested one.
func (h row) matches(as holdKind, w Want) bool {
	return h.way == as.name && h.item == w.Item && h.n == w.N
}

// judge returns why a new hold is refused, by the database's clock, or held.
func (t Table) judge(recorded row) string {
	switch {
	case recorded.until <= recorded.now:
		return stateLate
	case recorded.until > recorded.now+t.longest().Milliseconds():
		return stateFar
	}
	return stateHeld
}

// hold takes the units of a new hold, or records the refusal.
func (l ledger) hold(ctx context.Context, c branch.Call, as holdKind, w Want, judged string) (state string, err error) {
	if judged == stateHeld {
		done, err := l.Exec(ctx, as.try, w.N, w.Item, w.N)
		if err != nil || done == 1 {
			return stateHeld, err
		}
		var capacity int64
		known, err := l.Row(ctx, `select capacity from {items} where item = ?`, []any{w.Item}, &capacity)
		if err != nil {
			return "", err
		}
		if judged = stateShort; !known {
			judged = stateUnknown
		}
	}
	_, err = l.Exec(ctx, `update {holds} set state = ?, ask_ms = null where transaction_id = ? and branch = ?`,
		judged, c.Transaction, c.Branch)
	return judged, err
}

// answer returns the result of a try, the first one or a repeated one.
func (h row) answer(c branch.Call, as holdKind, w Want) error {
	if h.state == stateBlocked {
		return branch.Fail(cancelled(c))
	}
	if !h.matches(as, w) {
		return branch.Fail(failure.Bug("try", c.Transaction, "branch %q was already tried, to %s %d units of %q", c.Branch, h.way, h.n, h.item))
	}
	switch h.state {
	case stateHeld, stateConfirmed:
		return nil
	case stateCancelled:
		return branch.Fail(cancelled(c))
	}
	return branch.Fail(&RefusedError{Item: w.Item, N: w.N, Why: refusals[h.state]})
}

func cancelled(c branch.Call) error {
	return &CancelledError{ID: c.Transaction, Reason: fmt.Sprintf("branch %q came after its cancellation", c.Branch)}
}

var errItemDeleted = errors.New("the item of the hold is gone: its row was deleted")
