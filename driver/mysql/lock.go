package mysql

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// This file is the way of a session lock through the package. OpenTable has another one: table.go
// and package leasetable.
//
//	acquire  a task (tasks.go) of the one goroutine that owns the connection (driver.go). Tasks that wait
//	         share a statement, takeLocks of session.go: GET_LOCK without a wait, and a row that draws
//	         the token.
//	token    the AUTO_INCREMENT of a table in memory; cover makes durable that it was drawn, before it is
//	         returned.
//	wait     polling; a release in the same process wakes its waiters.
//	renewal  driver.go: every answer renews the session, whose deadline all claims share.
//	loss     driver.go ends the session: every claim on it is lost, and the next task dials the next one.
//	release  RELEASE_LOCK. If the session has ended, it is confirmed that the server has noticed.
//
// If a statement fails, undo releases what it may have taken. If that fails, the session ends.

// holding is a lock that the session has, guarded by Driver.mu. Since a session can take its
// own lock again, the driver excludes the owners of its process from each other.
type holding struct {
	driver.Request
	token interlock.Token
	claim *boottime.Lease
	lock  string // by which GET_LOCK knows it
	quiet bool
}

// former is a lock of an ended session. The server may not have noticed the end yet.
type former struct {
	lock string
	id   int64
}

// lost ends the claim, and reports that unless it had expired.
func (h *holding) lost(ranOut bool, cause error) {
	h.claim.End()
	if hook := h.Events.Lost; hook != nil && !ranOut && !h.quiet {
		hook(cause)
	}
}

// isAnswer reports whether err came from a server whose session can continue. It cannot if
// the server is read-only, since others take their locks on its successor, nor without its
// tables, which the next session creates.
func isAnswer(err error) bool {
	var native *client.MySQLError
	return errors.Is(err, errReset) || errors.As(err, &native) && !endsSession(native.Number) && !isReadOnly(native.Number) && native.Number != noTable
}

// outcome is the result of a try.
type outcome struct {
	grant  driver.Grant
	held   bool // by another
	here   bool // by this process
	holder string
	since  time.Time
}

// Acquire waits until r.Owner holds r.Name; see driver.Fenced.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := fail.CheckNames("acquire", r.Name, r.Owner); err != nil {
		return driver.Grant{}, err
	}
	d.silence(r.Name, r.Owner)
	var woken <-chan struct{}
	for refusals := 1; ; refusals++ {
		o, err := d.try(ctx, r, refusals == 1)
		switch {
		case err != nil, !o.held:
			return o.grant, err
		case r.NoWait:
			return driver.Grant{}, &interlock.HeldError{Name: r.Name, Owner: o.holder, Since: o.since}
		case refusals == 1 && r.Events.Waiting != nil:
			r.Events.Waiting(driver.Place{Ahead: -1, Holder: o.holder})
		}
		if woken == nil {
			var leave func()
			woken, leave = d.freed.Enter(r.Name)
			defer leave()
			if o.here && !d.holds(r.Name) {
				continue // released before we could be woken
			}
		}
		if err := fail.Pause(ctx, d.life, r.Name, woken, d.options.interval(refusals)); err != nil {
			return driver.Grant{}, err
		}
	}
}

// try asks once. If wantHolder is set, it also finds out who holds.
func (d *Driver) try(ctx context.Context, r driver.Request, wantHolder bool) (outcome, error) {
	h := &holding{Request: r}
	both := struct {
		task
		try
	}{task{op: "acquire", name: r.Name}, try{holding: h, ctx: ctx, wantHolder: wantHolder}}
	t := &both.task
	t.try = &both.try
	switch err := d.submit(ctx, t); {
	case err != nil:
		d.mu.Lock()
		defer d.mu.Unlock()
		h.quiet = true // it may be granted yet
		return outcome{}, err
	case !t.sent:
		return outcome{}, fail.Unanswered(ctx, "acquire", r.Name)
	}
	return t.outcome, nil
}

// take acquires the locks that this process does not hold, in one statement.
func (d *Driver) take(ctx context.Context, tries []*task) {
	var asked []*task
	for _, t := range tries {
		if t.ctx.Err() != nil {
			t.end(ctx, nil) // nobody waits: nothing is sent
		} else if o, here := d.heldHere(t.holding); here {
			t.grant(o)
		} else {
			asked = append(asked, t)
		}
	}
	if len(asked) == 0 {
		return
	}
	s, err := d.lock(ctx, asked)
	switch {
	case err != nil && isAnswer(err): // locks may have been taken before a row was refused
		d.undo(ctx, asked)
		if len(asked) > 1 {
			d.oneByOne(asked)
			return
		}
		fallthrough
	case err != nil:
		for _, t := range asked {
			t.end(ctx, err)
		}
		return
	}
	var held []*task
	for _, t := range asked {
		if t.counter == 0 {
			held = append(held, t)
		} else if o, err := d.hold(s, t); err != nil {
			d.undo(ctx, []*task{t})
			t.end(ctx, err)
		} else {
			t.grant(o)
		}
	}
	d.refused(ctx, held)
}

// lock requests locks, and reads the rows of those that were granted.
func (d *Driver) lock(ctx context.Context, asked []*task) (s *session, err error) {
	err = d.statement(ctx, func(used *session) (err error) {
		s = used
		next := 0
		read := func(row []byte) error {
			id, row := number(row)
			counter, row := number(row)
			clock, name := number(row)
			for range asked { // in their order, unless the server chose another one
				t := asked[next%len(asked)]
				if next++; t.name == string(name) {
					t.counter, t.clock = counter, clock
					break
				}
			}
			return s.sameAs(id)
		}
		for _, t := range asked {
			t.counter, t.holding.lock = 0, s.lockName(d.options, t.name)
		}
		if len(asked) == 1 {
			h := asked[0].holding
			hex.Encode(s.argument(0, 2*len(h.Name)), []byte(h.Name))
			copy(s.argument(1, len(h.lock)), h.lock)
			hex.Encode(s.argument(2, 2*len(h.Owner)), []byte(h.Owner))
			s.args[3].Value = s.args[1].Value
			err = s.eachOf(ctx, s.takeOne, s.args[:], read)
		} else {
			err = s.each(ctx, s.statement(d.takeLocks, func(b []byte) []byte {
				for i, t := range asked {
					if i > 0 {
						b = append(b, ", "...)
					}
					b = append(sqltable.AppendLiteral(append(b, '('), t.name), ", '"...)
					b = append(sqltable.AppendLiteral(append(append(b, t.holding.lock...), "', "...), t.holding.Owner), ')')
				}
				return b
			}), read)
		}
		if err != nil {
			return err
		}
		return s.cover(ctx, d.options, asked)
	})
	return s, err
}

// refused answers tries of locks that others have.
func (d *Driver) refused(ctx context.Context, held []*task) {
	for _, t := range held {
		if !t.wantHolder {
			t.grant(outcome{held: true})
			continue
		}
		o, err := d.holderOf(ctx, t.name)
		if err != nil {
			t.end(ctx, err)
			continue
		}
		t.grant(o)
	}
}

// undo releases locks that were not granted to an owner. If that fails, the session ends: it
// would take them twice, and release them once.
func (d *Driver) undo(ctx context.Context, tries []*task) {
	var locks []string
	for _, t := range tries {
		locks = append(locks, t.holding.lock)
	}
	if err := d.drop(ctx, locks); err != nil {
		d.endSession(err)
	}
}

// heldHere is the outcome for a name that this process holds.
func (d *Driver) heldHere(h *holding) (o outcome, here bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.holdings[h.Name]
	switch {
	case before == nil:
		return o, false
	case before.Owner != h.Owner:
		return outcome{held: true, here: true, holder: before.Owner}, true
	}
	h.token, h.claim, h.lock = before.token, before.claim, before.lock
	d.holdings[h.Name] = h
	return outcome{grant: driver.Grant{Lease: h.claim, Token: h.token}}, true
}

// holds reports whether this process holds a name.
func (d *Driver) holds(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holdings[name] != nil
}

// implausible refuses a counter that guards would refuse by the server's clock.
func implausible(name string, counter, clock int64) error {
	if err := driver.Plausible(counter, serverTime(clock)); err != nil {
		return problem("acquire", name, interlock.Definite, err)
	}
	return nil
}

// hold notes a lock that the session has.
func (d *Driver) hold(s *session, t *task) (o outcome, err error) {
	if err := implausible(t.name, t.counter, t.clock); err != nil {
		return o, err
	}
	token, err := interlock.NewToken(t.counter, 0)
	if err != nil {
		return o, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	h := t.holding
	h.token, h.claim = token, s.lease.Part()
	d.holdings[h.Name] = h
	if d.granted++; d.granted > max(sweepGrants, len(d.holdings)) {
		d.granted, d.sweeps.Next = 0, 0
	}
	return outcome{grant: driver.Grant{Lease: h.claim, Token: token}}, nil
}

// holderOf returns who holds. If the holder has just released, it is unknown.
func (d *Driver) holderOf(ctx context.Context, name string) (outcome, error) {
	o := outcome{held: true}
	var owner []byte
	var since int64
	err := d.statement(ctx, func(s *session) error {
		found, err := maybe(ctx, s.conn, d.options.sql(whoHolds), []any{[]byte(name)}, &owner, &since)
		if found {
			o.holder, o.since = string(owner), serverTime(since)
		}
		return err
	})
	return o, err
}

// silence ends the events of what owner has, until a repeated Acquire.
func (d *Driver) silence(name, owner string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.holdings[name]; h != nil && h.Owner == owner {
		h.quiet = true
	}
}

// Release releases what owner has on name; see driver.Fenced. A lock that was lost with a
// session is released once the server has noticed the end of the session.
func (d *Driver) Release(ctx context.Context, name, owner string) error {
	if err := fail.CheckNames("release", name, owner); err != nil {
		return err
	}
	d.silence(name, owner)
	return d.submit(ctx, &task{op: "release", name: name, owner: owner})
}

// release releases the locks of the owners of tasks, in one statement, and those that were
// lost with a session.
func (d *Driver) release(ctx context.Context, tasks []*task) {
	d.checkSession()
	var held []*task
	var locks []string
	for _, t := range tasks {
		d.mu.Lock()
		h := d.holdings[t.name]
		f, wasLost := d.former[t.owner]
		d.mu.Unlock()
		switch {
		case h != nil && h.Owner == t.owner:
			held, locks = append(held, t), append(locks, h.lock)
		case wasLost:
			t.end(ctx, d.confirmEnded(ctx, t.name, t.owner, f))
		default:
			t.end(ctx, nil)
		}
	}
	if len(held) > 0 {
		d.free(ctx, held, locks)
	}
}

// free releases locks of this session. If the session ends meanwhile, they are released too,
// once the server has noticed.
func (d *Driver) free(ctx context.Context, held []*task, locks []string) {
	err := d.drop(ctx, locks)
	if err != nil && len(held) > 1 {
		d.oneByOne(held)
		return
	}
	d.mu.Lock()
	f, wasLost := d.former[held[0].owner]
	for _, t := range held {
		if h := d.holdings[t.name]; h != nil && err == nil {
			h.claim.End()
			delete(d.holdings, t.name)
		}
	}
	d.mu.Unlock()
	if err != nil && wasLost && ctx.Err() == nil {
		err = d.confirmEnded(ctx, held[0].name, held[0].owner, f)
	}
	for _, t := range held {
		d.freed.Wake(t.name)
		t.end(ctx, err)
	}
}

// drop releases those of the locks that the session has.
func (d *Driver) drop(ctx context.Context, locks []string) error {
	return d.statement(ctx, func(s *session) error {
		read := func(row []byte) error {
			id, _ := number(row)
			return s.sameAs(id)
		}
		if len(locks) == 1 {
			copy(s.argument(1, len(locks[0])), locks[0])
			return s.eachOf(ctx, s.dropOne, s.args[1:2], read)
		}
		return s.each(ctx, s.statement(dropLocks, func(b []byte) []byte {
			for _, lock := range locks {
				b = append(append(append(b, ", release_lock('"...), lock...), "')"...)
			}
			return b
		}), read)
	})
}

// confirmEnded checks that the server has ended the session that held a lock.
func (d *Driver) confirmEnded(ctx context.Context, name, owner string, f former) error {
	var user int64
	err := d.statement(ctx, func(s *session) error {
		return one(ctx, s.conn, `select coalesce(is_used_lock(?), 0)`, []any{f.lock}, &user)
	})
	switch {
	case err != nil:
		return ofRead(ctx, "release", name, err)
	case user == f.id:
		return problem("release", name, interlock.Retryable,
			fmt.Errorf("the server has not noticed yet that session %d has ended", f.id))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.former, owner)
	return nil
}
