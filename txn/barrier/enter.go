package barrier

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// enterRow is the one statement by which a call enters its row: it shares the low-water
// mark, inserts the row or moves it as the call's event says, and returns what was there
// before. It returns nothing if the call is below the mark, or asks for the row of a
// branch that has none and gets none. Every time in it is when it began.
//
// On PostgreSQL the low-water mark is the newest row of its table, shared by every call
// until its transaction ends. A new mark is a new row. The old ones are deleted
// afterwards, which waits for the calls that share them, while later calls share the new
// one: nobody waits for a mark, and a mark does not wait for a pause in the calls. A call
// whose snapshot shows only what is deleted finds no mark at all. So once one row is
// left, all calls that go on have compared with it, whatever their isolation.
//
// On MariaDB the mark is one row, shared by a read that locks and so sees what was
// committed last, whatever the transaction's snapshot shows. Locks are granted in turn
// there, so that a mark is not kept waiting by ever new calls; those wait behind it, for
// a second at most. An assignment sees those before it: previous and remaining come
// first, and the others use them. In mode SIMULTANEOUS_ASSIGNMENT it sees the row as it was. No count of affected rows is relied on but that of
// rows which certainly change.
const enterRow = `
insert into {rows} {as present} (transaction_id, branch, step, state, previous, hash, known, result, busy, remaining, attempts, begun)
select ?, ?, {?}, '{first}', 'absent', {pg ?::bytea}{maria {?}}, {known}, {pg ?::bytea}{maria {?}}, {lease}, 0, 1, ?
from {pg (select mark, excepted from {marks} order by generation desc limit 1 for share) as m where}{maria {marks} where only_row = 1 and}
(? >= mark or position(? in excepted) > 0) {there}{maria  lock in share mode}
{or transaction_id, branch, step}
	previous = {old state},
	remaining = greatest(0, {old busy} - {micros start}),
	attempts = case when {ready} then {old attempts} + 1 else {old attempts} end,
	busy = case when {ready} then {new busy} else {old busy} end,
	result = case when {replace} and {ready} then {new result} else {old result} end,
	state = case when {ready} then {moved} else {old state} end
returning previous, hash, known, result, remaining, attempts`

const (
	simultaneous  = `@@sql_mode like '%SIMULTANEOUS_ASSIGNMENT%'`
	previousState = `{pg present.state}{maria if(` + simultaneous + `, state, previous)}`
	rowReady      = `(` + previousState + ` in {moving} and {pg present.busy <= {micros start}}{maria if(` + simultaneous + `, busy <= {micros start}, remaining = 0)}
		and ({old hash} = {new hash} or {old hash} = {empty} or {new hash} = {empty}))`
)

// isRow selects the row of a branch.
const isRow = `transaction_id = ? and branch = ? and step = {?}`

// enter executes the statement of c: it inserts or changes the row, locks it until the transaction ends,
// and returns what was there.
func (l ledger) enter(ctx context.Context, c claim, lease time.Duration) (f found, err error) {
	args := []any{c.Transaction, c.Branch, c.Step, filled(c.hash), filled(c.result)}
	if c.outside {
		args = append(args, lease.Microseconds())
	}
	args = append(args, c.begun(), c.begun(), exceptionKey(c.Transaction))
	if c.event == finish {
		args = append(args, c.Transaction, c.Branch, c.Step)
	}
	known := 0
	there, err := l.Row(ctx, statements[c.event][c.outside], args, (*string)(&f.previous), &f.hash, &known, &f.result, &f.remaining, &f.attempts)
	f.known = known != 0
	if err == nil && !there {
		return l.missed(ctx, c)
	}
	return f, err
}

// statements has enterRow for each event, inside and outside.
var statements = func() (all [events]map[bool]string) {
	for e := range events {
		all[e] = map[bool]string{false: statement(e, false), true: statement(e, true)}
	}
	return all
}()

func statement(e event, outside bool) string {
	to := changes(e, outside)
	first, known, replace, lease, there := moves[absent][e].after(outside), "0", "1 = 0", "0", ""
	switch first {
	case tried:
		known = "1"
	case absent: // it is not inserted, but the database looks at what it might insert
		first = blocked
	}
	if e == refusal {
		replace = "1 = 1"
	}
	if outside {
		lease = `{micros start} + ?`
	}
	if e == finish {
		there = `and exists (select 1 from {rows} as b where b.transaction_id = ? and b.branch = ? and b.step = {?}{maria  for update})`
	}
	return strings.NewReplacer("{first}", string(first), "{known}", known, "{replace}", replace, "{moving}", among(append([]state{absent}, sorted(to)...)),
		"{moved}", cases(previousState, to), "{lease}", lease, "{there}", there).Replace(strings.ReplaceAll(enterRow, "{ready}", rowReady))
}

// cases returns the part of a statement that changes a state, from the table of moves.
func cases(column string, to map[state]state) string {
	var b strings.Builder
	b.WriteString("case " + column)
	for _, from := range sorted(to) {
		fmt.Fprintf(&b, " when '%s' then '%s'", from, to[from])
	}
	return b.String() + " else " + column + " end"
}
