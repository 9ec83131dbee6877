package barrier

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
)

// enterRow is the statement of a call. It locks the low-water mark for share, inserts the
// branch's row or changes its state, and returns the former contents. It returns no row if the
// call is below the mark, or if it confirms a branch that has no row. All times in it are the
// time at which the statement began.
//
// On PostgreSQL the low-water mark is the newest row of its table. Every call locks it for share
// until its transaction ends. A new mark is a new row; the older rows are deleted afterwards,
// which waits for the calls that locked them. Later calls lock the new row. So no call waits for
// a new mark, and a new mark does not wait for a pause between calls. A call whose snapshot has
// only deleted rows finds no mark. So once one row is left, every call that continues has
// compared with it, at any isolation level.
//
// On MariaDB the mark is one row. A locking read sees the last committed value, whatever the
// transaction's snapshot is. Locks are granted in order there: a new mark waits only for the calls
// before it, and later calls wait for it, for a second at most. An assignment sees the earlier
// ones: previous and remaining come first, and the others use them. In mode
// SIMULTANEOUS_ASSIGNMENT it sees the former row. Counts of affected rows are used only where the
// row certainly changes.
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
// and returns its former contents.
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
	found, err := l.Row(ctx, statements[c.event][c.outside], args, (*string)(&f.previous), &f.hash, &known, &f.result, &f.remaining, &f.attempts)
	f.known = known != 0
	if err == nil && !found {
		return l.missed(ctx, c)
	}
	return f, err
}

// statements has enterRow for each event, without and with an outside call.
var statements = func() (all [events]map[bool]string) {
	for e := range events {
		all[e] = map[bool]string{false: statement(e, false), true: statement(e, true)}
	}
	return all
}()

func statement(e event, outside bool) string {
	to := changes(e, outside)
	first, known, replace, lease, present := moves[absent][e].after(outside), "0", "1 = 0", "0", ""
	switch first {
	case tried:
		known = "1"
	case absent: // it is not inserted, but the database checks the values
		first = blocked
	}
	if e == refusal {
		replace = "1 = 1"
	}
	if outside {
		lease = `{micros start} + ?`
	}
	if e == finish {
		present = `and exists (select 1 from {rows} as b where b.transaction_id = ? and b.branch = ? and b.step = {?}{maria  for update})`
	}
	return strings.NewReplacer("{first}", string(first), "{known}", known, "{replace}", replace, "{moving}", among(append([]state{absent}, sorted(to)...)),
		"{moved}", cases(previousState, to), "{lease}", lease, "{there}", present).Replace(strings.ReplaceAll(enterRow, "{ready}", rowReady))
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

// claim is a call with what its row needs.
type claim struct {
	branch.Call
	event   event
	outside bool
	hash    []byte // of the input; empty if there is none to compare
	result  []byte // of a row that this call inserts
}

func (c claim) begun() int64 { return c.Begun.UnixMilli() }

// maxPart is the longest name of a branch or step, in bytes.
const maxPart = 255

var operations = map[branch.Operation]event{
	branch.Do: forward, branch.Try: forward, branch.Prepare: forward,
	branch.Confirm: finish, branch.Commit: finish,
	branch.Undo: back, branch.Cancel: back, branch.Rollback: back,
}

// callOf returns the call of ctx, if its operation fits e.
func callOf(ctx context.Context, e event) (claim, error) {
	c := claim{Call: branch.From(ctx), event: e}
	of, ok := operations[c.Operation]
	bug := func(format string, args ...any) (claim, error) {
		return claim{}, failure.Bug("pass barrier", c.Key(), format, args...)
	}
	switch {
	case c.Call == (branch.Call{}):
		return bug("the context has no call: see branch.With")
	case !ok:
		return bug("unknown operation %q", string(c.Operation))
	case of != e:
		return bug("this function does not answer operation %q", string(c.Operation))
	case c.Begun.UnixMilli() <= 0:
		return bug("the call has no begin of its transaction")
	}
	if err := errors.Join(driver.CheckText("a transaction's id", c.Transaction, 1, driver.MaxTransaction),
		driver.CheckText("a branch's name", c.Branch, 1, maxPart), driver.CheckText("a step's name", c.Step, 0, maxPart)); err != nil {
		return bug("%w", err)
	}
	return c, nil
}

// hash returns the hash of an input: of its bytes, or of its JSON.
func hash(c claim, input any) ([]byte, error) {
	text, ok := input.([]byte)
	if !ok {
		var err error
		if text, err = json.Marshal(input); err != nil {
			return nil, failure.Bug("pass barrier", c.Key(), "encode input: %w", err)
		}
	}
	sum := sha256.Sum256(text)
	return sum[:], nil
}

// maxOutput bounds an output, as JSON: it equals branchhttp.MaxBody, the longest answer of a participant.
const maxOutput = driver.MaxBarrierResult

// encode returns the stored form of an output. It is empty for the zero value, so that a branch
// without output costs no statement.
func encode[O any](c claim, output O) ([]byte, error) {
	var zero O
	text, err := json.Marshal(output)
	if err != nil {
		return nil, failure.Bug("pass barrier", c.Key(), "encode output: %w", err)
	}
	if len(text) > maxOutput {
		return nil, failure.Bug("pass barrier", c.Key(), "its output has %d bytes of JSON; at most %d are stored", len(text), maxOutput)
	}
	if none, err := json.Marshal(zero); err == nil && bytes.Equal(none, text) {
		return nil, nil
	}
	return text, nil
}

// decode is the inverse of encode.
func decode[O any](c claim, result []byte) (output O, err error) {
	if len(result) == 0 {
		return output, nil
	}
	if err := json.Unmarshal(result, &output); err != nil {
		return output, failure.Bug("pass barrier", c.Key(), "decode the stored output as %T: %w", output, err)
	}
	return output, nil
}

// maxReason bounds the stored text of a refusal, in bytes.
const maxReason = 4 << 10

// reason returns the stored text of a refusal.
func reason(err error) string {
	text := strings.ToValidUTF8(err.Error(), "�")
	if len(text) <= maxReason {
		return text
	}
	return strings.ToValidUTF8(text[:maxReason], "")
}
