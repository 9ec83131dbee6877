package mysql

import (
	"context"
	"errors"
	"fmt"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// holding is a lock that the session has, guarded by Driver.mu. A session could
// take a lock that it has once more, so that the driver itself keeps the owners
// of its process apart.
type holding struct {
	driver.Request
	token interlock.Token
	claim *boottime.Lease
	lock  string // by which GET_LOCK knows it
	quiet bool
}

// former is what an ended session held: the server may not have noticed yet.
type former struct {
	lock string
	id   int64
}

// lost ends the claim, and says so unless its time had run out anyway.
func (h *holding) lost(ranOut bool, cause error) {
	h.claim.End()
	if tell := h.Events.Lost; tell != nil && !ranOut && !h.quiet {
		tell(cause)
	}
}

// isAnswer reports whether err came from a server whose session goes on. It does
// not when the server has become read-only, since others take their locks on its
// successor, nor without its tables, which the next session makes.
func isAnswer(err error) bool {
	var native *client.MySQLError
	return errors.As(err, &native) && !endsSession(native.Number) && !isReadOnly(native.Number) && native.Number != noTable
}

// outcome is what came of a try.
type outcome struct {
	grant  driver.Grant
	held   bool // by another
	holder string
	since  time.Time
}

// Acquire waits until r.Owner holds r.Name; see driver.Fenced.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := fail.CheckNames("acquire", r.Name, r.Owner); err != nil {
		return driver.Grant{}, err
	}
	d.hush(r.Name, r.Owner)
	woken, leave := d.freed.Enter(r.Name)
	defer leave()
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
		if err := d.pause(ctx, r.Name, woken, d.options.interval(refusals)); err != nil {
			return driver.Grant{}, err
		}
	}
}

func (d *Driver) pause(ctx context.Context, name string, woken <-chan struct{}, t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-woken:
	case <-timer.C:
	case <-d.life.Done():
		return problem("acquire", name, interlock.Uncertain, interlock.ErrClosed)
	case <-ctx.Done():
		return fail.Unanswered(ctx, "acquire", name)
	}
	return nil
}

// try asks once. curious asks also who holds.
func (d *Driver) try(ctx context.Context, r driver.Request, curious bool) (outcome, error) {
	h := &holding{Request: r}
	both := struct {
		task
		try
	}{task{op: "acquire", name: r.Name}, try{holding: h, ctx: ctx, curious: curious}}
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

// take takes the locks that this process does not have, in one statement.
func (d *Driver) take(ctx context.Context, tries []*task) {
	var asked []*task
	for _, t := range tries {
		if t.ctx.Err() != nil {
			t.end(ctx, nil) // nobody waits: nothing is sent
		} else if o, here := d.here(t.holding); here {
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
			d.apart(asked)
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
		} else if o, err := d.granted(s, t); err != nil {
			d.undo(ctx, []*task{t})
			t.end(ctx, err)
		} else {
			t.grant(o)
		}
	}
	d.refused(ctx, held)
}

// lock asks for locks, and notes the rows of those that were granted.
func (d *Driver) lock(ctx context.Context, asked []*task) (s *session, err error) {
	err = d.statement(ctx, func(used *session) error {
		s = used
		query := s.statement(d.takeLocks, func(b []byte) []byte {
			for i, t := range asked {
				if t.counter, t.holding.lock = 0, s.lockName(d.options, t.name); i > 0 {
					b = append(b, ", "...)
				}
				b = append(appendBytes(append(b, '('), t.name), ", '"...)
				b = append(appendBytes(append(append(b, t.holding.lock...), "', "...), t.holding.Owner), ')')
			}
			return b
		})
		next := 0
		return s.each(ctx, query, func(row []byte) error {
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
		})
	})
	return s, err
}

// refused answers tries of locks that others have.
func (d *Driver) refused(ctx context.Context, held []*task) {
	for _, t := range held {
		if !t.curious {
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

// undo gives back locks that nobody was given. If that fails the session ends:
// it would take them once more, and then give them up only once.
func (d *Driver) undo(ctx context.Context, tries []*task) {
	var locks []string
	for _, t := range tries {
		locks = append(locks, t.holding.lock)
	}
	if err := d.drop(ctx, locks); err != nil {
		d.over(err)
	}
}

// here is for a name that this process has.
func (d *Driver) here(h *holding) (o outcome, here bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.holdings[h.Name]
	switch {
	case before == nil:
		return o, false
	case before.Owner != h.Owner:
		return outcome{held: true, holder: before.Owner}, true
	}
	h.token, h.claim, h.lock = before.token, before.claim, before.lock
	d.holdings[h.Name] = h
	return outcome{grant: driver.Grant{Lease: h.claim, Token: h.token}}, true
}

// implausible refuses a counter that guards would refuse by the server's clock.
func implausible(name string, counter, clock int64) error {
	if err := driver.Plausible(counter, serverTime(clock)); err != nil {
		return problem("acquire", name, interlock.Definite, err)
	}
	return nil
}

// granted notes a lock that the session has.
func (d *Driver) granted(s *session, t *task) (o outcome, err error) {
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
	return outcome{grant: driver.Grant{Lease: h.claim, Token: token}}, nil
}

// holderOf asks who holds; one who has just given up is not known.
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

// hush ends the events of what owner has, until a repeated Acquire adds it again.
func (d *Driver) hush(name, owner string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.holdings[name]; h != nil && h.Owner == owner {
		h.quiet = true
	}
}

// Release gives up whatever owner has on name; see driver.Fenced. What was lost
// with a session is given up when the server has noticed that.
func (d *Driver) Release(ctx context.Context, name, owner string) error {
	if err := fail.CheckNames("release", name, owner); err != nil {
		return err
	}
	d.hush(name, owner)
	return d.submit(ctx, &task{op: "release", name: name, owner: owner})
}

// release gives up what the owners of tasks hold, in one statement, and what was lost with a
// session.
func (d *Driver) release(ctx context.Context, tasks []*task) {
	d.look()
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
			t.end(ctx, d.bury(ctx, t.name, t.owner, f))
		default:
			t.end(ctx, nil)
		}
	}
	if len(held) > 0 {
		d.free(ctx, held, locks)
	}
}

// free gives up locks of this session. If the session ends over that, they are
// given up as well, once the server has noticed.
func (d *Driver) free(ctx context.Context, held []*task, locks []string) {
	err := d.drop(ctx, locks)
	if err != nil && len(held) > 1 {
		d.apart(held)
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
		err = d.bury(ctx, held[0].name, held[0].owner, f)
	}
	for _, t := range held {
		d.freed.Wake(t.name)
		t.end(ctx, err)
	}
}

// drop makes the session give up locks, those that it has.
func (d *Driver) drop(ctx context.Context, locks []string) error {
	return d.statement(ctx, func(s *session) error {
		query := s.statement(dropLocks, func(b []byte) []byte {
			for _, lock := range locks {
				b = append(append(append(b, ", release_lock('"...), lock...), "')"...)
			}
			return b
		})
		return s.each(ctx, query, func(row []byte) error {
			id, _ := number(row)
			return s.sameAs(id)
		})
	})
}

// bury confirms that the server has ended the session that held a lock.
func (d *Driver) bury(ctx context.Context, name, owner string, f former) error {
	var user int64
	err := d.statement(ctx, func(s *session) error {
		return one(ctx, s.conn, `select coalesce(is_used_lock(?), 0)`, []any{f.lock}, &user)
	})
	switch {
	case err != nil:
		return ofLook(ctx, "release", name, err)
	case user == f.id:
		return problem("release", name, interlock.Retryable,
			fmt.Errorf("the server has not noticed yet that session %d has ended", f.id))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.former, owner)
	return nil
}
