package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/join"
)

// contender is one owner's attempt at a name under one session, and its outcome. The driver's
// mutex guards its mutable fields.
type contender struct {
	identity
	key      string
	session  *session
	previous *contender      // of the same owner, under an earlier session
	ctx      context.Context // ends with the session and with Release
	cancel   context.CancelCauseFunc

	events driver.Events
	stage  stage
	// doubtful: the outcome of a transaction is unknown. It may take effect while the
	// session lives and its fence is not raised.
	doubtful bool
	index    uint64 // of the key when it was granted
	term     *boottime.Lease
	grant    driver.Grant
	place    *driver.Place // as last reported
	// releasing counts the calls of Release under way.
	releasing int
}

type stage int

const (
	asking  stage = iota // it holds nothing, as far as known
	holding              // it was granted
	lost                 // another session holds the key, or none
	leaving              // its release is due
)

// Acquire implements driver.Fenced. It blocks until the claim is granted or ctx is done; a single
// request is bounded by a third of the TTL, from one to five seconds. Without contention it is one
// request, and a second one once in ten seconds if other processes grant too.
//
// Besides the errors of the interface: a [*ConflictError] if the key holds something else, and
// Retryable with interlock.ErrSessionEnded in its chain if the session ended during the wait;
// the same call then opens another.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := d.check(ctx, r); err != nil {
		return driver.Grant{}, err
	}
	s, err := d.current(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	c, err := d.register(s, r)
	if err != nil {
		return driver.Grant{}, err
	}
	ctx, end := join.Context(ctx, c.ctx)
	defer end()
	grant, err := d.acquire(ctx, c, r.NoWait)
	if err != nil {
		d.abandon(c)
	}
	return grant, err
}

func (d *Driver) check(ctx context.Context, r driver.Request) error {
	if err := checkName(opAcquire, r.Name); err != nil {
		return err
	}
	if r.Owner == "" || len(r.Owner) > driver.MaxName || !utf8.ValidString(r.Owner) {
		return refused(opAcquire, r.Name, fmt.Errorf("the owner must be 1 to %d bytes of UTF-8", driver.MaxName))
	}
	return d.usable(ctx, opAcquire, r.Name)
}

// register returns the owner's contender, or a new one.
func (d *Driver) register(s *session, r driver.Request) (*contender, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := identity{r.Name, r.Owner}
	old := d.contenders[id]
	switch {
	case s.ctx.Err() != nil:
		return nil, ended(opAcquire, r.Name, s.ctx)
	case old != nil && old.stage == leaving:
		return nil, fail.New(opAcquire, r.Name, interlock.Retryable, interlock.ErrReleased)
	case old != nil && old.session == s && old.stage != lost:
		old.events, old.place = r.Events, nil
		return old, nil
	}
	c := &contender{identity: id, key: d.layout.lock(r.Name), session: s, events: r.Events}
	if old != nil && old.remains() {
		c.previous = old
	}
	c.ctx, c.cancel = context.WithCancelCause(s.ctx)
	d.contenders[id] = c
	return c, nil
}

// remains reports whether Consul may have a key of it. The caller holds the driver's mutex.
func (c *contender) remains() bool {
	return c.previous != nil || c.stage != lost && !c.session.gone && (c.doubtful || c.term != nil)
}

// abandon forgets a contender without a key. Its events end in any case.
func (d *Driver) abandon(c *contender) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.stage == holding {
		return
	}
	c.events = driver.Events{}
	if c.stage == asking && !c.remains() {
		d.forget(c)
	}
}

// forget removes a contender; the caller holds the driver's mutex.
func (d *Driver) forget(c *contender) {
	c.cancel(interlock.ErrReleased)
	if d.contenders[c.identity] == c {
		delete(d.contenders, c.identity)
	}
}

// acquire tries until it is granted, and waits in between while another holds the key.
func (d *Driver) acquire(ctx context.Context, c *contender, noWait bool) (driver.Grant, error) {
	if grant, ok := d.granted(c); ok {
		return grant, nil
	}
	if err := d.dropPrevious(ctx, c); err != nil {
		return driver.Grant{}, err
	}
	var now sight
	var err error
	if c.doubtful {
		now, err = d.look(ctx, c)
	}
	for i := 0; err == nil && (!noWait || i < attempts); i++ {
		var grant driver.Grant
		if grant, now, err = d.round(ctx, c, now, noWait); grant.Lease != nil {
			return grant, nil
		}
	}
	if err == nil {
		err = fail.New(opAcquire, c.name, interlock.Retryable, errOthers)
	}
	return driver.Grant{}, err
}

// granted returns the grant of an earlier call.
func (d *Driver) granted(c *contender) (driver.Grant, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.grant, c.stage == holding && c.term.Remaining() > 0
}

// sight is the observed state of a key, and the index to wait from. The zero sight is a
// key that should not exist.
type sight struct {
	entry
	index uint64
}

// round takes the key or waits, depending on its observed state. If it returns neither a
// grant nor an error, call it again.
func (d *Driver) round(ctx context.Context, c *contender, now sight, noWait bool) (driver.Grant, sight, error) {
	r, ours := readRecord(now.entry)
	switch {
	case now.Session == c.session.id && ours && r.Owner == c.owner: // a request whose answer was lost
		d.mu.Lock()
		defer d.mu.Unlock()
		grant, err := d.hold(c, r, now.ModifyIndex)
		return grant, now, err
	case now.Session != "" && noWait:
		return driver.Grant{}, now, &interlock.HeldError{Name: c.name, Owner: holderOf(now.entry)}
	case now.Session != "":
		now, err := d.wait(ctx, c, now)
		return driver.Grant{}, now, err
	case now.exists() && now.Flags != lockFlag:
		return driver.Grant{}, now, fail.New(opAcquire, c.name, interlock.Definite, &ConflictError{now.Key, now.Flags})
	}
	grant, err := d.take(ctx, c, now)
	var why *refusal
	if !errors.As(err, &why) {
		return grant, now, err
	}
	now, err = d.refused(ctx, c, why, now, noWait)
	return driver.Grant{}, now, err
}

// Operations of a transaction that takes a lock.
const (
	opKey   = iota // the key is unchanged
	opBasis        // the base of the token is the one in the record
	opFence        // the transaction was not abandoned meanwhile
	opLock
)

// take sends one transaction, which takes a free key.
func (d *Driver) take(ctx context.Context, c *contender, seen sight) (driver.Grant, error) {
	s := c.session
	from, basis, err := s.basis(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	r := record{Owner: c.owner, Base: from.value, Index: from.index, Since: d.options.Now().UTC().Round(0)}
	value, err := json.Marshal(r)
	if err != nil {
		return driver.Grant{}, refused(opAcquire, c.name, err)
	}
	d.mu.Lock()
	if c.ctx.Err() != nil { // from here on, a Release finds it doubtful
		d.mu.Unlock()
		return driver.Grant{}, d.stopped(ctx, c, interlock.Definite)
	}
	doubtful := c.doubtful
	c.doubtful = true
	fence := op{Verb: "check-index", Key: d.layout.fence(s.id), Index: s.fence}
	d.mu.Unlock()
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	entries, err := d.client.txn(rctx, []op{opKey: unchanged(c.key, seen.entry), opBasis: basis, opFence: fence,
		opLock: {Verb: "lock", Key: c.key, Session: s.id, Flags: lockFlag, Value: value}}...)
	if err != nil {
		kind := kindOf(err)
		d.mu.Lock()
		c.doubtful = doubtful || kind == interlock.Uncertain
		d.mu.Unlock()
		if kind == interlock.Uncertain && (ctx.Err() != nil || c.ctx.Err() != nil) {
			return driver.Grant{}, d.stopped(ctx, c, kind)
		}
		return driver.Grant{}, failed(rctx, opAcquire, c.name, err)
	}
	now := find(entries, c.key)
	if from.index == 0 {
		from.index = now.ModifyIndex
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.seen = max(s.seen, now.ModifyIndex); from.index > s.base.index {
		s.base = from
	}
	c.doubtful = doubtful
	return d.hold(c, r, now.ModifyIndex)
}

// stopped returns the error of a call whose context ended, by the caller, by Release, or
// with the session.
func (d *Driver) stopped(ctx context.Context, c *contender, kind interlock.ErrorKind) error {
	if c.ctx.Err() != nil {
		ctx = c.ctx
	}
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, interlock.ErrClosed):
		return fail.Closed(opAcquire, c.name)
	case errors.Is(cause, interlock.ErrSessionEnded):
		kind = interlock.Retryable
	case errors.Is(cause, interlock.ErrReleased):
		kind = interlock.Definite
	}
	return fail.New(opAcquire, c.name, kind, cause)
}

func ended(op, name string, ctx context.Context) error {
	if errors.Is(context.Cause(ctx), interlock.ErrClosed) {
		return fail.Closed(op, name)
	}
	return fail.New(op, name, interlock.Retryable, interlock.ErrSessionEnded)
}

// hold starts the claim. If the owner has released meanwhile, it deletes the key again.
// The caller holds the driver's mutex.
func (d *Driver) hold(c *contender, r record, index uint64) (driver.Grant, error) {
	token, err := r.token(index)
	c.index, c.term = index, c.session.term.Part()
	switch {
	case err != nil:
		return driver.Grant{}, fail.New(opAcquire, c.name, interlock.Definite, err)
	case c.ctx.Err() != nil:
		return driver.Grant{}, d.stopped(c.ctx, c, interlock.Retryable)
	}
	c.stage, c.events.Waiting = holding, nil
	c.grant = driver.Grant{Lease: c.term, Token: token}
	d.top = max(d.top, token.Counter())
	return c.grant, nil
}

// reportLost ends a claim whose key we lost. The caller holds the driver's mutex.
func (c *contender) reportLost(cause error) {
	c.stage = lost
	c.term.End()
	if c.events.Lost != nil {
		c.events.Lost(cause)
	}
	c.events = driver.Events{}
}

// look reads the key.
func (d *Driver) look(ctx context.Context, c *contender) (sight, error) {
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	e, index, err := d.client.get(rctx, c.key)
	if err == nil {
		return sight{e, index}, nil
	}
	if ctx.Err() != nil {
		return sight{}, d.stopped(ctx, c, interlock.Uncertain)
	}
	err = unread(rctx, opAcquire, c.name, err)
	if c.doubtful {
		err = uncertain(opAcquire, c.name, err)
	}
	return sight{}, err
}

// refused finds out why a transaction was refused.
func (d *Driver) refused(ctx context.Context, c *contender, why *refusal, now sight, noWait bool) (sight, error) {
	s := c.session
	if why.why[opBasis] != "" {
		d.mu.Lock()
		s.base = base{} // the next one reads it
		d.mu.Unlock()
	}
	switch {
	case why.why[opKey] != "":
		return d.look(ctx, c)
	case why.why[opFence] != "":
		if err := s.confirm(ctx); err != nil {
			if ctx.Err() != nil {
				return now, d.stopped(ctx, c, interlock.Retryable)
			}
			return now, unread(ctx, opAcquire, c.name, err)
		}
	case why.why[opLock] != "" && noWait: // it is free, and the lock-delay of a session has not passed
		return now, &interlock.HeldError{Name: c.name}
	case why.why[opLock] != "":
		d.report(c, "")
		return now, d.pause(ctx, c, d.pace.retry)
	}
	return now, nil
}

func (d *Driver) pause(ctx context.Context, c *contender, long time.Duration) error {
	if backoff.Sleep(ctx, long) {
		return nil
	}
	return d.stopped(ctx, c, interlock.Uncertain)
}
