package tcc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
)

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
	is, err := l.record(ctx, c, as, w, until.UnixMilli())
	switch {
	case err == nil && is.calls == 0:
		is.state, err = l.hold(ctx, c, as, w, t.judge(is))
	case err == nil && is.state == stateHeld && is.matches(as, w):
		err = l.prolong(ctx, c, is, until.UnixMilli(), t.longest().Milliseconds())
	}
	if err != nil {
		return err
	}
	return is.answer(c, as, w)
}

// record inserts the row of a hold, or finds the existing one, and locks it.
func (l ledger) record(ctx context.Context, c branch.Call, as holdKind, w Want, until int64) (is row, err error) {
	_, err = l.Row(ctx, `insert into {holds} {as present} (transaction_id, branch, way, item, n, state, was, calls, until_ms, ask_ms, changed_ms)
		values (?, ?, ?, ?, ?, 'held', 'none', 0, ?, ?, {millis now})
		{or transaction_id, branch} calls = {old calls} + 1
		returning calls, state, way, item, n, until_ms, {millis now}`,
		[]any{c.Transaction, c.Branch, as.name, w.Item, w.N, until, until},
		&is.calls, &is.state, &is.way, &is.item, &is.n, &is.until, &is.now)
	return is, err
}

// prolong gives an existing hold a later expiry, at most the longest.
func (l ledger) prolong(ctx context.Context, c branch.Call, is row, until, longest int64) error {
	if until <= is.until || until > is.now+longest {
		return nil
	}
	_, err := l.Exec(ctx, `update {holds} set until_ms = ?, ask_ms = ? where transaction_id = ? and branch = ?`,
		until, until, c.Transaction, c.Branch)
	return err
}

// matches reports whether the hold is the requested one.
func (is row) matches(as holdKind, w Want) bool {
	return is.way == as.name && is.item == w.Item && is.n == w.N
}

// judge returns why a new hold is refused, by the database's clock, or held.
func (t Table) judge(is row) string {
	switch {
	case is.until <= is.now:
		return stateLate
	case is.until > is.now+t.longest().Milliseconds():
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
func (is row) answer(c branch.Call, as holdKind, w Want) error {
	if is.state == stateBlocked {
		return branch.Fail(cancelled(c))
	}
	if !is.matches(as, w) {
		return branch.Fail(failure.Bug("try", c.Transaction, "branch %q was already tried, to %s %d units of %q", c.Branch, is.way, is.n, is.item))
	}
	switch is.state {
	case stateHeld, stateConfirmed:
		return nil
	case stateCancelled:
		return branch.Fail(cancelled(c))
	}
	return branch.Fail(&RefusedError{Item: w.Item, N: w.N, Why: refusals[is.state]})
}

func cancelled(c branch.Call) error {
	return &CancelledError{ID: c.Transaction, Reason: fmt.Sprintf("branch %q came after its cancellation", c.Branch)}
}

var errItemDeleted = errors.New("the item of the hold is gone: its row was deleted")
