package etcd

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// contender is one owner's attempt at one name under one session. The driver's
// mutex guards all fields but over and under.
type contender struct {
	identity
	line    string // prefix of the line's keys
	key     string
	session *session
	sent    sent
	events  driver.Events

	state   state
	created int64           // create revision, once it holds
	token   interlock.Token // once it holds
	granted bool            // Acquire has returned the grant
	place   driver.Place    // while it waits
	pending int             // unanswered requests that may write or delete its key

	// stale are keys of this owner under sessions that expired here. etcd may still
	// have them; the next request deletes them.
	stale []string
	since boottime.Instant // when it was granted under a waitLease
	// aside: its key may be under a waitLease, which may outlive the session.
	aside bool
	// under is the waitLease under which it holds; nil means the session's.
	under atomic.Pointer[waitLease]
	// over: the claim was lost or released, even if the session lives.
	over atomic.Bool
	// changed wakes the waiting Acquire, and holds one signal; nil while none waits.
	changed chan struct{}
}

// sent is the value of a contender's key as last requested, and the base in it.
type sent struct {
	value []byte // empty before the first request
	base  int64
}

type state int

const (
	asking   state = iota // not sent yet, or the outcome is unknown
	waiting               // in line
	holding               // first in line
	dropped               // etcd no longer has its key
	outdated              // its session ended
	leaving               // Release was called
)

// enlist returns the owner's contender. It first deletes the owner's key if another client wrote it,
// because the request would only find it again.
func (d *Driver) enlist(ctx context.Context, s *session, r driver.Request) (*contender, error) {
	d.mu.Lock()
	c := d.contenders[identity{r.Name, r.Owner}]
	barred := c != nil && c.session == s && s.queues.isDeleting(c.key)
	d.mu.Unlock()
	if !barred {
		return d.register(s, r)
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	rev, err := d.delete(rctx, c.key)
	if err != nil {
		return nil, failed(rctx, opAcquire, r.Name, err)
	}
	s.removed(rev, c.key)
	return d.register(s, r)
}

// register returns the owner's contender. A new one joins its line, so that no later event
// about its key is missed.
func (d *Driver) register(s *session, r driver.Request) (*contender, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed(opAcquire, r.Name)
	}
	if s.queues.ended {
		return nil, again(r.Name, interlock.ErrSessionEnded)
	}
	id := identity{r.Name, r.Owner}
	old := d.contenders[id]
	if old != nil && old.session == s && old.state < dropped {
		old.events = r.Events
		if old.state == waiting {
			old.reportPlace()
		}
		return old, nil
	}
	c := &contender{identity: id, line: d.layout.line(r.Name), session: s, events: r.Events}
	if old != nil {
		c.stale = old.remains(s)
		old.session.queues.leave(old)
	}
	c.key = s.queues.free(c.line, s.id)
	d.contenders[id] = c
	s.queues.join(c)
	return c, nil
}

// remains lists the keys of an old contender that etcd may still keep.
func (c *contender) remains(now *session) []string {
	if c.session == now || c.session.revoked && !c.aside || c.state == dropped {
		return c.stale
	}
	return append(slices.Clone(c.stale), c.key)
}

func (d *Driver) unanswered(c *contender) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.state == asking
}

// addPending counts n more requests that may write or delete the keys of cs.
func (d *Driver) addPending(n int, cs ...*contender) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range cs {
		c.pending += n
	}
}

func (c *contender) wake() { nudge(c.changed) }

// grant returns the result of Acquire. The caller holds the driver's mutex.
func (c *contender) grant() driver.Grant {
	c.granted, c.events.Waiting = true, nil // a holder has no place
	return driver.Grant{Lease: lease{c}, Token: c.token}
}

// win, queue and keyDeleted apply a change of the line to c. The caller holds the driver's
// mutex.
func (c *contender) win(e effect) {
	token, err := interlock.NewToken(e.base+e.created, 0)
	under, ok := c.session.leaseOf(e.lease)
	if err != nil || e.base == unknownBase || e.owner != c.owner || !ok {
		c.state = dropped // another client wrote its value; without its own base it has no token
		c.session.queues.scheduleDelete(c.key)
		c.wake()
		return
	}
	c.state, c.created, c.token = holding, e.created, token
	if under != nil {
		c.since = boottime.Sent()
		c.under.Store(under)
		c.session.moveLater()
	}
	c.wake()
}

func (c *contender) queue(e effect) {
	c.state, c.place = waiting, driver.Place{Ahead: e.ahead, Holder: e.holder}
	c.session.watch.need(deletions)
	c.reportPlace()
}

func (c *contender) reportPlace() {
	if c.events.Waiting != nil {
		c.events.Waiting(c.place)
	}
}

// dropEvents ends the events of an owner whose Acquire returns an error, even if
// its place is granted later.
func (d *Driver) dropEvents(id identity) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.contenders[id]; c != nil {
		c.events = driver.Events{}
	}
}

func (c *contender) keyDeleted() {
	c.reportLost(interlock.ErrLost)
	c.state = dropped
	c.wake()
	nudge(c.session.checkNow) // the whole session may have ended
}

// reportLost reports the loss to a holder that was granted and not yet lost. The
// caller holds the driver's mutex, so that the report cannot follow a Release.
func (c *contender) reportLost(cause error) {
	c.over.Store(true)
	if c.granted && c.events.Lost != nil {
		c.events.Lost(cause)
	}
	c.granted = false
}

// released records that one release of c was confirmed.
func (d *Driver) released(c *contender) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.pending--
	d.forget(c)
}

// endClaim ends the claim in this process, and returns the keys that etcd may have of it. The
// contender stays known until etcd has confirmed; nil means that there is nothing to confirm.
func (d *Driver) endClaim(name, owner string) (*contender, []string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil, errClosed("release", name)
	}
	c := d.contenders[identity{name, owner}]
	if c == nil {
		return nil, nil, nil
	}
	gone := c.goneWithSession() || c.state == dropped && !c.session.queues.isDeleting(c.key) && len(c.stale) == 0
	c.over.Store(true)
	c.granted, c.state, c.events = false, leaving, driver.Events{}
	c.session.queues.stepOut(c)
	c.wake()
	if gone {
		d.forget(c)
		return nil, nil, nil
	}
	c.pending++ // permanently if the outcome is unknown
	return c, c.keys(), nil
}

// keys returns all keys that etcd may have of a contender.
func (c *contender) keys() []string { return append(slices.Clone(c.stale), c.key) }

// goneWithSession reports whether its keys ended with its session.
func (c *contender) goneWithSession() bool { return c.session.revoked && !c.aside && len(c.stale) == 0 }

// forget removes a contender. The caller holds the driver's mutex.
func (d *Driver) forget(c *contender) {
	c.session.queues.leave(c)
	if d.contenders[c.identity] == c {
		delete(d.contenders, c.identity)
	}
}

// retryDelete makes the present session repeat the deletion of a failed release, until etcd
// confirms it or has ended the contender's session. The contender stays known until then, so
// that the release can be repeated.
func (d *Driver) retryDelete(c *contender) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.goneWithSession() {
		d.forget(c)
		return
	}
	c.session.queues.leave(c) // from here on no contender has the key
	if d.session != nil {
		d.session.queues.inherit(c)
	}
}

// lease is the lease of one claim: that of its session, until the claim is over.
type lease struct{ c *contender }

// Remaining implements driver.Lease.
func (l lease) Remaining() time.Duration {
	if l.c.over.Load() {
		return 0
	}
	left := l.c.session.term.Remaining()
	if under := l.c.under.Load(); under != nil {
		left = min(left, under.term.Remaining())
	}
	return left
}

// Contender identifies the key of a claim in etcd.
type Contender struct {
	Key            string
	Lease          clientv3.LeaseID
	CreateRevision int64
}

// Contender returns the key of a claim that this driver holds, for transactions
// that compare Key's create revision with CreateRevision. ok is false if owner
// does not hold name as far as this driver knows. It does not block.
func (d *Driver) Contender(name, owner string) (at Contender, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.contenders[identity{name, owner}]
	if c == nil || c.state != holding || !c.granted {
		return Contender{}, false
	}
	at = Contender{Key: c.key, Lease: c.session.id, CreateRevision: c.created}
	if under := c.under.Load(); under != nil {
		at.Lease = under.id
	}
	return at, true
}
