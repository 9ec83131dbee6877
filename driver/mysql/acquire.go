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
	results := make(chan outcome, 1) // the task may outlast this call
	h := &holding{Request: r}
	err := d.ask(ctx, "acquire", r.Name, func(work context.Context) error {
		if ctx.Err() != nil {
			return nil // nobody waits: nothing is sent
		}
		o, err := d.take(work, h, curious)
		results <- o
		return err
	})
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		h.quiet = true // it may be granted yet
		return outcome{}, err
	}
	select {
	case o := <-results:
		return o, nil
	default:
		return outcome{}, fail.Unanswered(ctx, "acquire", r.Name)
	}
}

// take takes the lock if this process does not have it.
func (d *Driver) take(ctx context.Context, h *holding, curious bool) (outcome, error) {
	if o, here := d.here(h); here {
		return o, nil
	}
	var counter, connection, clock int64
	got := false
	var s *session
	err := d.statement(ctx, func(used *session) (err error) {
		s = used
		lock := s.lockName(d.options, h.Name)
		got, err = maybe(ctx, s.conn, d.options.sql(takeLock),
			[]any{[]byte(h.Name), lock, []byte(h.Owner), lock}, &counter, &connection, &clock)
		if err == nil && got {
			err = s.sameAs(connection)
		}
		return err
	})
	o := outcome{held: true}
	if got && err == nil {
		err = implausible(h.Name, counter, clock)
	}
	if got && err == nil {
		o, err = d.granted(s, h, counter)
	}
	switch {
	case err != nil && (got || isAnswer(err)): // it may have been taken before the row was refused
		d.undo(ctx, h.Name)
		return outcome{}, err
	case err != nil:
		return outcome{}, err
	case o.held && curious:
		return d.holderOf(ctx, h.Name)
	}
	return o, nil
}

// undo gives back a lock that nobody was given. If that fails the session ends:
// it would take the lock once more, and then give it up only once.
func (d *Driver) undo(ctx context.Context, name string) {
	if err := d.drop(ctx, name); err != nil {
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
	h.token, h.claim = before.token, before.claim
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

func (d *Driver) granted(s *session, h *holding, counter int64) (o outcome, err error) {
	token, err := interlock.NewToken(counter, 0)
	if err != nil {
		return o, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
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
	return d.ask(ctx, "release", name, func(ctx context.Context) error {
		d.look()
		d.mu.Lock()
		h := d.holdings[name]
		f, wasLost := d.former[owner]
		d.mu.Unlock()
		switch {
		case h != nil && h.Owner == owner:
			return d.free(ctx, name, owner)
		case wasLost:
			return d.bury(ctx, name, owner, f)
		}
		return nil
	})
}

// free gives up a lock of this session. If the session ends over that, it is
// given up as well, once the server has noticed.
func (d *Driver) free(ctx context.Context, name, owner string) error {
	if err := d.drop(ctx, name); err != nil {
		d.mu.Lock()
		f, wasLost := d.former[owner]
		d.mu.Unlock()
		if !wasLost || ctx.Err() != nil {
			return err
		}
		return d.bury(ctx, name, owner, f)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.holdings[name]; h != nil {
		h.claim.End()
		delete(d.holdings, name)
	}
	d.freed.Wake(name)
	return nil
}

// drop makes the session give up a lock, if it has it.
func (d *Driver) drop(ctx context.Context, name string) error {
	return d.statement(ctx, func(s *session) error {
		var dropped, connection int64
		err := one(ctx, s.conn, dropLock, []any{s.lockName(d.options, name)}, &dropped, &connection)
		if err != nil {
			return err
		}
		return s.sameAs(connection)
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
