package consul

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
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

// remains reports whether Consul may have a key of its owner, and hasKey, one of its own. The caller
// holds the driver's mutex.
func (c *contender) remains() bool {
	return c.hasKey() || c.previous != nil && c.previous.remains()
}

func (c *contender) hasKey() bool {
	return c.stage != lost && !c.session.gone && (c.doubtful || c.term != nil)
}

// abandon forgets a contender without a key. Its events end in any case.
func (d *Driver) abandon(c *contender) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.stage == holding {
		return
	}
	c.events = driver.Events{}
	if c.stage != leaving && !c.remains() {
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

// hold starts the claim. If the owner has released meanwhile, that Release deletes the key.
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

// giveUp ends the claim in this process. The caller holds the driver's mutex.
func (c *contender) giveUp() {
	c.events = driver.Events{}
	if c.term != nil {
		c.term.End()
	}
	if c.stage != lost {
		c.stage = leaving
	}
	c.cancel(interlock.ErrReleased)
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
