package consul

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/join"
)

// This file is the protocol of a lock, that of Lock in github.com/hashicorp/consul/api, which
// "consul lock" uses too, with a token. A lock is a key that names its holder's session.
//
//	acquire  take: one transaction gives the key to our session, if the key is as it was seen, the
//	         base of tokens is unchanged and no later Release has raised the session's fence.
//	token    base + index of the grant; see counter.go.
//	wait     follow: a blocking query of the key. Consul has no queue: those who wait race.
//	renewal  session.go renews the session, and then checks that it still holds the keys.
//	loss     that check, or the end of the session.
//	release  remove: one transaction deletes the key if it is unchanged since the grant.
//
// If the outcome of take is unknown, a repeated Acquire reads the key. A Release raises the fence
// first, after which that transaction cannot take effect.

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
	if errors.Is(err, interlock.ErrHeld) { // nothing may be left, also of an earlier call without an answer
		err = cmp.Or(d.drop(ctx, c), err)
	}
	if err != nil {
		d.abandon(c)
	}
	return grant, err
}

// acquire tries until it is granted, and waits in between while another holds the key.
func (d *Driver) acquire(ctx context.Context, c *contender, noWait bool) (driver.Grant, error) {
	if grant, ok := d.granted(c); ok {
		return grant, nil
	}
	if err := d.dropAll(ctx, c.previous); err != nil {
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

// wait follows the key by blocking queries while another holds it. A failed query is
// followed by one that does not block, since its answer may be lost.
func (d *Driver) wait(ctx context.Context, c *contender, now sight) (sight, error) {
	for now.Session != "" {
		d.report(c, holderOf(now.entry))
		asked := time.Now()
		next, err := d.follow(ctx, c, now.index)
		switch {
		case ctx.Err() != nil:
			return now, d.stopped(ctx, c, interlock.Uncertain)
		case err != nil && interlock.Kind(unread(ctx, opAcquire, c.name, err)) == interlock.Definite:
			return now, failed(ctx, opAcquire, c.name, err)
		case err != nil:
			now.index = 0
			if err := d.pause(ctx, c, d.pace.retry); err != nil {
				return now, err
			}
			continue
		}
		if next.index < now.index {
			next.index = 0 // Consul's index fell: it may be another cluster
		}
		now = next
		if early := d.pace.least - time.Since(asked); now.Session != "" && early > 0 {
			if err := d.pause(ctx, c, early); err != nil {
				return now, err
			}
		}
	}
	return now, nil
}

// follow sends one blocking query; index 0 answers at once.
func (d *Driver) follow(ctx context.Context, c *contender, index uint64) (sight, error) {
	rctx, cancel := d.blocking(ctx)
	defer cancel()
	all, next, err := d.client.read(rctx, c.key, query{index: index, wait: d.pace.quiet})
	if err != nil || len(all) == 0 {
		return sight{index: next}, err
	}
	return sight{all[0], next}, nil
}

// report reports the holder that c waits for, if it has changed.
func (d *Driver) report(c *contender, holder string) {
	d.mu.Lock()
	defer d.mu.Unlock() // so that the report does not follow a Release
	p := driver.Place{Ahead: -1, Holder: holder}
	if c.events.Waiting == nil || c.place != nil && *c.place == p {
		return
	}
	c.place = &p
	c.events.Waiting(p)
}

// holderOf names the holder of a key, for display.
func holderOf(e entry) string {
	if r, ok := readRecord(e); ok {
		return r.Owner
	}
	return "session " + e.Session
}

// Release implements driver.Fenced: one request, which deletes the key if it is unchanged
// since the grant. If the outcome of a transaction is unknown, it raises the fence and
// reads the key first. If Release fails, the driver repeats it with every renewal, because the
// session, which all locks share, keeps the key. For an owner unknown to this driver it sends nothing.
func (d *Driver) Release(ctx context.Context, name, owner string) error {
	if err := checkName(opRelease, name); err != nil {
		return err
	}
	d.mu.Lock()
	if d.ctx.Err() != nil {
		d.mu.Unlock()
		return fail.Closed(opRelease, name)
	}
	c := d.contenders[identity{name, owner}]
	if c == nil {
		d.mu.Unlock()
		return nil
	}
	c.giveUp()
	c.releasing++
	d.mu.Unlock()
	err := d.leave(ctx, c)
	d.mu.Lock()
	defer d.mu.Unlock()
	c.releasing--
	return err
}

// leave deletes the keys of a leaving contender's owner, and forgets it.
func (d *Driver) leave(ctx context.Context, c *contender) error {
	if err := d.dropAll(ctx, c); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(c)
	return nil
}

// dropAll deletes the keys of c, and of the same owner under earlier sessions.
func (d *Driver) dropAll(ctx context.Context, c *contender) error {
	for ; c != nil; c = c.previous {
		if err := d.drop(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// drop deletes a contender's key. nil means that it has none, and will have none.
func (d *Driver) drop(ctx context.Context, c *contender) error {
	d.mu.Lock()
	hasKey, doubtful, index := c.hasKey(), c.doubtful, c.index
	d.mu.Unlock()
	if !hasKey {
		return nil
	}
	if ctx.Err() != nil {
		return fail.Unanswered(ctx, opRelease, c.name)
	}
	if doubtful {
		if err := c.session.bump(ctx); err != nil {
			return uncertain(opRelease, c.name, failed(ctx, opRelease, c.name, err))
		}
		index = 0
	}
	for range attempts {
		if index == 0 {
			var err error
			if index, err = d.ownIndex(ctx, c); err != nil {
				return err
			}
		}
		done, err := d.remove(ctx, c, index)
		if done || err != nil {
			return err
		}
		index = 0
	}
	return fail.New(opRelease, c.name, interlock.Retryable, errOthers)
}

// nothing is the index of a key that another contender has.
const nothing = ^uint64(0)

// ownIndex reads the index of the contender's key.
func (d *Driver) ownIndex(ctx context.Context, c *contender) (uint64, error) {
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	e, _, err := d.client.get(rctx, c.key)
	if err != nil {
		return 0, uncertain(opRelease, c.name, unread(rctx, opRelease, c.name, err))
	}
	// An operator may have replaced the value: then only the session identifies the holder,
	// and no other owner of this session can hold the name.
	if r, ours := readRecord(e); e.Session != c.session.id || ours && r.Owner != c.owner {
		return nothing, nil
	}
	return e.ModifyIndex, nil
}

// remove deletes the key if it is unchanged since index. done means that the contender has
// nothing any more.
func (d *Driver) remove(ctx context.Context, c *contender, index uint64) (done bool, err error) {
	if index != nothing {
		rctx, cancel := d.bounded(ctx)
		defer cancel()
		_, err = d.client.txn(rctx, op{Verb: "delete-cas", Key: c.key, Index: index})
		var changed *refusal
		if errors.As(err, &changed) {
			return false, nil
		}
		if err != nil {
			return false, failed(rctx, opRelease, c.name, err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.stage, c.doubtful = lost, false
	return true, nil
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
