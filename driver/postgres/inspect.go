package postgres

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

// ask sends a call of one statement and waits for its answer.
func (d *Driver) ask(ctx context.Context, op, name, statement string, args ...string) (*session, answer, error) {
	if ctx.Err() != nil {
		return nil, answer{}, fail.Unsent(ctx, op, name)
	}
	s, err := d.connected(ctx, op, name)
	if err != nil {
		return nil, answer{}, err
	}
	a, err := d.askOn(ctx, s, op, name, step{statement, args})
	return s, a, err
}

func (d *Driver) askOn(ctx context.Context, s *session, op, name string, steps ...step) (answer, error) {
	done := make(chan answer, 1)
	err := s.pipe.send(&call{steps: steps, done: func(a answer) {
		if !a.over {
			d.checkAnswer(s, a)
		}
		done <- a
	}})
	if err != nil {
		return answer{}, problem(op, name, interlock.Retryable, err)
	}
	select {
	case a := <-done:
		return a, ofAnswer(op, name, a)
	case <-ctx.Done():
		return answer{}, fail.Unanswered(ctx, op, name)
	}
}

// Lock shows one name; see driver.Inspector. Holders and waiters whose session
// is gone are not shown. A session that took the lock by hand is shown as a foreign
// holder, "process" and the number of its server process; Locks does not show it, because
// the lock does not have its name.
func (d *Driver) Lock(ctx context.Context, name string) (driver.LockState, error) {
	state := driver.LockState{Name: name}
	if err := fail.CheckNames("inspect", name, "-"); err != nil {
		return state, err
	}
	_, a, err := d.ask(ctx, "inspect", name, stShow, keyText(d.key(name)), name)
	if err != nil {
		return state, failure.Uncommitted(err)
	}
	for _, row := range a.rows {
		if err := show(&state, row); err != nil {
			return state, problem("inspect", name, interlock.Bug, err)
		}
	}
	return state, nil
}

// Locks lists names; see driver.Inspector.
func (d *Driver) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	if err := fail.CheckNames("list", cmp.Or(prefix, "-"), "-"); err != nil {
		return nil, false, err
	}
	limit = min(max(limit, 0), math.MaxInt-1)
	_, a, err := d.ask(ctx, "list", "", stList, prefix, strconv.Itoa(limit+1))
	if err != nil {
		return nil, false, failure.Uncommitted(err)
	}
	var locks []driver.LockState
	for _, row := range a.rows {
		name := string(row[0])
		if len(locks) == 0 || locks[len(locks)-1].Name != name {
			locks = append(locks, driver.LockState{Name: name})
		}
		if err := show(&locks[len(locks)-1], row[1:]); err != nil {
			return nil, false, problem("list", "", interlock.Bug, err)
		}
	}
	if len(locks) > limit {
		return locks[:limit], true, nil
	}
	return locks, false, nil
}

// show adds a row of owner, counter, since and what is left, to state.
func show(state *driver.LockState, row []field) error {
	c := driver.Contender{Owner: string(row[0])}
	counter, err := strconv.ParseInt(string(row[1]), 10, 64)
	left, failed := strconv.ParseInt(string(row[3]), 10, 64)
	since, undated := micros(row[2])
	if err = cmp.Or(err, failed, undated); err != nil {
		return err
	}
	c.Since = since
	if counter < 0 { // it was taken by hand
		if state.Holder == nil {
			state.Holder = &driver.Contender{Owner: c.Owner, Foreign: true}
		}
		return nil
	}
	if counter == 0 {
		state.Waiters = append(state.Waiters, c)
		return nil
	}
	c.Expires = time.Duration(left) * time.Millisecond
	if c.Token, err = interlock.NewToken(counter, 0); err != nil {
		return err
	}
	if state.Holder == nil {
		state.Holder = &c
	}
	return nil
}

// handleNotification handles a notification: of a waiter's turn, of a forced release, or for watchers.
func (d *Driver) handleNotification(s *session, channel, payload string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session != s || d.closed {
		return
	}
	if channel == d.dialer.watchChannel() {
		for w := range d.watchers {
			w.names.Add(payload)
		}
		return
	}
	if order, ok := strings.CutPrefix(payload, "!"); ok {
		d.handleBreak(s, order)
		return
	}
	if key, err := strconv.ParseInt(payload, 10, 64); err == nil {
		now := boottime.Now()
		d.perform(s, d.table.wake(now, key))
		d.reschedule(now)
	}
}

// watcher is one running Watch. After the end of a session it must attend again, and any name may have
// changed.
type watcher struct {
	prefix string
	names  *driver.Mailbox
}

// settling are the delays after which a new watch reports again that anything may have
// changed: statements that were under way when it began do not notify it.
var settling = []time.Duration{100 * time.Millisecond, time.Second, statementTimeout + time.Second}

// Watch reports changes of holders and waiters; see driver.Watcher. The end of a session is not
// reported: look again when the holder expires.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	if ctx.Err() != nil {
		return fail.Unsent(ctx, "watch", prefix)
	}
	w := &watcher{prefix, driver.NewMailbox(prefix, driver.MostNames)}
	w.names.Miss()
	d.mu.Lock()
	d.watchers[w] = true
	d.mu.Unlock()
	defer d.unwatch(w)
	settle := time.NewTimer(time.Hour)
	defer settle.Stop()
	settled := 0
	for {
		names, begin, err := d.news(w)
		if err != nil {
			return err
		}
		if begin {
			if err := d.attend(ctx, w); err != nil {
				return err
			}
			names, settled = []string{""}, 0
			settle.Reset(settling[0])
		}
		for _, name := range names {
			changed(name)
		}
		select {
		case <-ctx.Done():
			return fail.Unsent(ctx, "watch", prefix)
		case <-w.names.Woken():
		case <-settle.C:
			if changed(""); settled+1 < len(settling) {
				settled++
				settle.Reset(settling[settled])
			}
		}
	}
}

// news returns the changed names. If begin is true, the watch must attend.
func (d *Driver) news(w *watcher) (names []string, begin bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, false, fail.Closed("watch", w.prefix)
	}
	names, begin = w.names.Take()
	return names, begin, nil
}

// attend makes the sessions that change a lock notify this one.
func (d *Driver) attend(ctx context.Context, w *watcher) error {
	s, err := d.connected(ctx, "watch", w.prefix)
	if err != nil {
		return err
	}
	_, err = d.askOn(ctx, s, "watch", w.prefix, step{stListen, nil}, step{stAttend, []string{number(s.id)}})
	return failure.Uncommitted(err)
}

// unwatch removes w; without watchers there are no more notifications.
func (d *Driver) unwatch(w *watcher) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.watchers, w)
	if s := d.session; s != nil && len(d.watchers) == 0 && !d.closed {
		d.run(s, step{stUnlisten, nil}, step{stForget, []string{number(s.id)}})
	}
}

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
	if err := fail.CheckNames("list breaks", cmp.Or(name, "-"), "-"); err != nil {
		return nil, err
	}
	_, a, err := d.ask(ctx, "list breaks", name, stBreaks, name, strconv.Itoa(max(limit, 0)))
	if err != nil {
		return nil, failure.Uncommitted(err)
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
