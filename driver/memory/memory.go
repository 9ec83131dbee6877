// Package memory keeps locks in one process. It excludes no other process, and its
// state ends with the process. It is the executable specification of driver.Fenced: the
// protocol is a pure state machine (table.go), and the whole driver runs in the virtual
// time of testing/synctest. [Fence] is the executable specification of driver.Fence,
// for data that is in memory as well, [Values] that of driver.Values, and [Barrier]
// that of driver.Barrier.
//
//	space := memory.NewSpace()
//	locks, err := lock.NewFenced(space.Open(nil), nil)
//
// Each driver opened on a [Space] acts as one process.
//
// # Guarantees
//
// FIFO between drivers. CrossProcess is not guaranteed, so that requiring it fails
// at construction.
//
// # Token
//
// One counter per space, started at interlock.CounterAt of the present time.
//
// # Liveness
//
// A claim lives for the TTL unless its driver renews it, every third of it.
//
// # Waiting
//
// A waiter is notified directly and then confirms, as with any backend.
//
// # Interoperation
//
// None.
//
// # Escape hatch
//
// None: there is no backend.
package memory

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/failure"
)

const fail = failure.Driver("memory")

// DefaultTTL is the default of Options.TTL.
const DefaultTTL = 30 * time.Second

// Options of a driver; nil and the zero value work.
type Options struct {
	// TTL is how long a claim lives without renewal; 0 means [DefaultTTL]. Claims are renewed every
	// third of it. A negative value means 0.
	TTL time.Duration
}

// A Space is shared by the drivers of one namespace. It needs no Close.
type Space struct {
	mu    sync.Mutex
	table *table
	wakes map[string]chan struct{} // by owner: receives when it becomes the holder
	sweep *time.Timer

	watches map[*driver.Mailbox]bool
	broken  []driver.BreakRecord // oldest first
	fence   *Fence
	values  *Values
}

// NewSpace returns an empty namespace whose counter starts at the present time.
func NewSpace() *Space {
	return &Space{
		table: newTable(interlock.CounterAt(time.Now())),
		wakes: make(map[string]chan struct{}),

		watches: make(map[*driver.Mailbox]bool),
		fence:   newFence(),
		values:  newValues(),
	}
}

// Open opens a driver of fenced locks on the space. It does not block.
func (s *Space) Open(o *Options) *Driver {
	ttl := DefaultTTL
	if o != nil && o.TTL > 0 {
		ttl = o.TTL
	}
	d := &Driver{space: s, ttl: ttl, calls: make(map[string]*call), done: make(chan struct{})}
	d.mu.Lock() // the first renewal may be due before renewal is set
	defer d.mu.Unlock()
	d.renewal = time.AfterFunc(ttl/3, d.renew)
	return d
}

// OpenPlain opens a driver of advisory locks on the space. It excludes fenced
// ones of the same name.
func (s *Space) OpenPlain(o *Options) *Plain { return &Plain{s.Open(o)} }

// Driver is one process of a [Space]. It is a driver.Fenced, driver.Batch,
// driver.Inspector, driver.Watcher and driver.Breaker.
type Driver struct {
	space   *Space
	ttl     time.Duration
	renewal *time.Timer
	done    chan struct{} // closed by Close

	mu     sync.Mutex
	calls  map[string]*call // by owner: all calls that wait or hold
	closed bool
}

var (
	_ driver.Fenced    = (*Driver)(nil)
	_ driver.Inspector = (*Driver)(nil)
	_ driver.Advisory  = (*Plain)(nil)
)

// call is the request of one owner. A repeated Acquire replaces it.
type call struct {
	req   driver.Request
	wake  chan struct{}   // receives when the space has granted; capacity 1; nil until it waits
	lease *boottime.Lease // nil until Acquire has returned it
}

var errNoAnswer = errors.New("the driver was closed while the request was under way")

// Guarantees returns order and tokens, and nothing between processes.
func (d *Driver) Guarantees() interlock.Guarantees {
	return interlock.Guarantees{
		Driver: "memory", Class: interlock.Fenced, TokenFrom: "counter of the space",
		Liveness: interlock.ServerTTL, Clock: interlock.ServerClock,
		Order: interlock.FIFO, Wait: interlock.Push,
		TokensSurvive:     interlock.HolderPause | interlock.OperatorDelete | interlock.ServerClockJump,
		ExclusionSurvives: interlock.ServerClockJump,
		TTL:               d.ttl,
		MinTTL:            time.Millisecond,
		MaxTTL:            24 * time.Hour,
		Blind:             d.ttl / 3,
	}
}

// Acquire waits until r.Owner holds r.Name.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if ctx.Err() != nil {
		return driver.Grant{}, fail.Unsent(ctx, "acquire", r.Name)
	}
	c, err := d.begin(r)
	if err != nil {
		return driver.Grant{}, err
	}
	for {
		sent := boottime.Sent()
		counter, place, err := d.space.arrive(c, d.ttl)
		switch {
		case err != nil:
			d.forget(r.Owner)
			return driver.Grant{}, err
		case counter > 0:
			return d.granted(c, sent, counter)
		}
		if r.Events.Waiting != nil {
			r.Events.Waiting(place)
		}
		select {
		case <-c.wake: // and confirm
		case <-d.done:
		case <-ctx.Done():
			return driver.Grant{}, fail.Unanswered(ctx, "acquire", r.Name)
		}
		if d.isClosed() {
			return driver.Grant{}, fail.New("acquire", r.Name, interlock.Uncertain, errNoAnswer)
		}
	}
}

// Release ends the grant or the wait of owner on name.
func (d *Driver) Release(_ context.Context, name, owner string) error {
	if d.isClosed() {
		return interlock.ErrClosed
	}
	d.forget(owner)
	d.space.leave(name, owner)
	return nil
}

// Close stops renewals. Held locks expire.
func (d *Driver) Close(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		close(d.done)
	}
	d.closed = true
	d.renewal.Stop()
	return nil
}

// Locks lists the names that are held or awaited.
func (d *Driver) Locks(_ context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	if d.isClosed() {
		return nil, false, interlock.ErrClosed
	}
	locks, more := d.space.list(prefix, limit)
	return locks, more, nil
}

// Lock returns the state of one name.
func (d *Driver) Lock(_ context.Context, name string) (driver.LockState, error) {
	if d.isClosed() {
		return driver.LockState{}, interlock.ErrClosed
	}
	return d.space.show(name), nil
}

func (d *Driver) begin(r driver.Request) (*call, error) {
	if r.Name == "" || len(r.Name) > driver.MaxName {
		return nil, fail.New("acquire", r.Name, interlock.Bug, interlock.ErrName)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, interlock.ErrClosed
	}
	c := &call{req: r}
	if before := d.calls[r.Owner]; before != nil {
		c.lease = before.lease
	}
	d.calls[r.Owner] = c
	return c, nil
}

func (d *Driver) granted(c *call, sent boottime.Instant, counter int64) (driver.Grant, error) {
	token, err := interlock.NewToken(counter, 0)
	if err != nil {
		return driver.Grant{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	ttl := c.req.Lease(d.ttl)
	if c.lease == nil || !c.lease.Renew(sent, ttl) {
		c.lease = boottime.NewLease(sent, ttl)
	}
	if c.hasOwnTime() && c.req.Renew >= 0 {
		time.AfterFunc(c.req.Every(d.ttl), func() { d.renewAlone(c) })
	}
	return driver.Grant{Lease: c.lease, Token: token}, nil
}

func (d *Driver) forget(owner string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.calls, owner)
}

func (d *Driver) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// renew renews all leases of this driver, and reports lost ones.
func (d *Driver) renew() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.renewal.Reset(d.ttl / 3)
	for owner, c := range d.calls {
		if c.lease == nil || !c.hasOwnTime() {
			d.renewOne(owner, c)
		}
	}
}

// hasOwnTime reports whether the lease is renewed separately from the others.
func (c *call) hasOwnTime() bool { return c.req.TTL != 0 || c.req.Renew != 0 }

// renewAlone renews a lease with its own times.
func (d *Driver) renewAlone(c *call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.calls[c.req.Owner] != c {
		return
	}
	time.AfterFunc(c.req.Every(d.ttl), func() { d.renewAlone(c) })
	d.renewOne(c.req.Owner, c)
}

// renewOne calls events with the driver locked, so that none follows a Release or
// Close.
func (d *Driver) renewOne(owner string, c *call) {
	sent := boottime.Sent()
	ttl := d.ttl
	if c.lease != nil {
		ttl = c.req.Lease(ttl)
	}
	present := d.space.renew(c, ttl)
	switch e := c.req.Events; {
	case c.lease == nil: // it waits: Acquire handles the result
	case present:
		c.lease.Renew(sent, ttl)
		if e.Renewed != nil {
			e.Renewed(boottime.Sent().Sub(sent), nil)
		}
	default:
		delete(d.calls, owner)
		expired := c.lease.Remaining() <= 0
		if c.lease.End(); e.Lost != nil && !expired {
			e.Lost(interlock.ErrLost)
		}
	}
}

// Plain is one process of a [Space] that acquires locks without tokens. It is a
// driver.Advisory.
type Plain struct{ d *Driver }

// Guarantees returns those of [Driver], without a token.
func (p *Plain) Guarantees() interlock.Guarantees {
	g := p.d.Guarantees()
	g.Class, g.TokenFrom, g.TokensSurvive = interlock.Advisory, "", 0
	return g
}

// Acquire waits until r.Owner holds r.Name.
func (p *Plain) Acquire(ctx context.Context, r driver.Request) (driver.Lease, error) {
	g, err := p.d.Acquire(ctx, r)
	return g.Lease, err
}

// Release ends the grant or the wait of owner on name.
func (p *Plain) Release(ctx context.Context, name, owner string) error {
	return p.d.Release(ctx, name, owner)
}

// Close stops renewals. Held locks expire.
func (p *Plain) Close(ctx context.Context) error { return p.d.Close(ctx) }
