package postgres

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

// breakGrace is how long a holder's process has to give up what it is asked for.
const breakGrace = time.Second

// Break takes a lock away; see driver.Breaker. In one statement it is recorded
// and the holder's process is asked to give this one lock up. If that does not
// answer within a second, the server ends its session: no session can
// release the lock of another. Its other locks stay with that process until its
// deadline. Ending it needs the holder's database role, or pg_signal_backend.
func (d *Driver) Break(ctx context.Context, b driver.Break) (driver.BreakRecord, bool, error) {
	if err := fail.CheckBreak(b); err != nil {
		return driver.BreakRecord{}, false, err
	}
	key := keyText(d.key(b.Name))
	s, a, err := d.ask(ctx, "break", b.Name, stBreak, key, b.Name, b.Owner, b.Reason, b.By)
	if err == nil && len(a.rows) == 0 && strings.HasPrefix(b.Owner, "process ") {
		return d.breakForeign(ctx, s, b)
	}
	if err != nil || len(a.rows) == 0 {
		return driver.BreakRecord{}, false, err
	}
	row := a.rows[0]
	record, err := broken("break", b, row[0], row[1])
	if err == nil {
		err = d.awaitBreak(ctx, s, b, string(row[2]))
	}
	if err != nil {
		return driver.BreakRecord{}, false, err
	}
	return record, true, nil
}

// breakForeign ends the session of a process that took the lock by hand, and returns
// when it does not have it any more.
func (d *Driver) breakForeign(ctx context.Context, s *session, b driver.Break) (driver.BreakRecord, bool, error) {
	key := keyText(d.key(b.Name))
	a, err := d.askOn(ctx, s, "break", b.Name, step{stForeign, []string{key, b.Name, b.Owner, b.Reason, b.By}})
	if err != nil || len(a.rows) == 0 {
		return driver.BreakRecord{}, false, err
	}
	record, err := broken("break", b, a.rows[0][0], a.rows[0][1])
	if err != nil {
		return driver.BreakRecord{}, false, err
	}
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		state, err := d.Lock(ctx, b.Name)
		switch {
		case err != nil:
			return driver.BreakRecord{}, false, leasetable.UncertainBreak(fail, b.Name, err)
		case state.Holder == nil || state.Holder.Owner != b.Owner:
			return record, true, nil
		}
		select {
		case <-ctx.Done():
			return driver.BreakRecord{}, false, fail.Unanswered(ctx, "break", b.Name)
		case <-look.C:
		}
	}
}

// broken reads a record.
func broken(op string, b driver.Break, counter, at field) (record driver.BreakRecord, err error) {
	n, err := strconv.ParseInt(string(counter), 10, 64)
	when, failed := micros(at)
	if err = cmp.Or(err, failed); err == nil {
		record, err = leasetable.Broken(b, n, when)
	}
	if err != nil {
		err = problem(op, b.Name, interlock.Bug, err)
	}
	return record, err
}

// awaitBreak ends the session that holds the lock if it does not release it in time. It removes
// what an ended session leaves.
func (d *Driver) awaitBreak(ctx context.Context, s *session, b driver.Break, holder string) error {
	look, grace := time.NewTicker(20*time.Millisecond), time.NewTimer(breakGrace)
	defer look.Stop()
	defer grace.Stop()
	held := step{stHeld, []string{keyText(d.key(b.Name)), b.Owner}}
	for {
		a, err := d.askOn(ctx, s, "break", b.Name, held)
		if err == nil && string(a.rows[0][0]) == "f" {
			_, err = d.askOn(ctx, s, "break", b.Name, step{stLeave, held.args})
			return leasetable.UncertainBreak(fail, b.Name, err)
		}
		if err != nil {
			return leasetable.UncertainBreak(fail, b.Name, err)
		}
		select {
		case <-ctx.Done():
			return fail.Unanswered(ctx, "break", b.Name)
		case <-look.C:
		case <-grace.C:
			if _, err := d.askOn(ctx, s, "break", b.Name, step{stEnd, []string{holder}}); err != nil {
				return leasetable.UncertainBreak(fail, b.Name, err)
			}
		}
	}
}

// handleBreak releases what somebody has recorded as broken, and tells the holder.
// It runs under Driver.mu.
func (d *Driver) handleBreak(s *session, order string) {
	number, owner, _ := strings.Cut(order, " ")
	key, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return
	}
	now := boottime.Now()
	effects := d.table.drop(now, key, owner)
	if len(effects) == 0 {
		return
	}
	id := effects[0].on.identity
	if q := d.requests[id]; q != nil && q.claim != nil {
		q.lost(q.claim.Remaining() <= 0, problem("renew", id.name, interlock.Definite,
			fmt.Errorf("%w: it was taken away by force", interlock.ErrLost)))
		delete(d.requests, id)
	}
	d.perform(s, effects)
	d.reschedule(now)
}

// Breaks shows what was recorded, which is kept until an operator deletes it.
func (d *Driver) Breaks(ctx context.Context, name string, limit int) ([]driver.BreakRecord, error) {
	if name != "" {
		if err := fail.CheckNames("list breaks", name, "-"); err != nil {
			return nil, err
		}
	}
	_, a, err := d.ask(ctx, "list breaks", name, stBreaks, name, strconv.Itoa(max(limit, 0)))
	if err != nil {
		return nil, err
	}
	var all []driver.BreakRecord
	for _, row := range a.rows {
		b := driver.Break{Name: string(row[0]), Owner: string(row[1]), Reason: string(row[2]), By: string(row[3])}
		record, err := broken("list breaks", b, row[4], row[5])
		if err != nil {
			return nil, err
		}
		all = append(all, record)
	}
	return all, nil
}
