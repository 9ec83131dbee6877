// Package renewal renews the leases of one driver, and reports their events. It does no I/O: a
// driver supplies how leases are extended.
package renewal

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/hints"
)

// Config configures a Keeper.
type Config struct {
	Driver failure.Driver
	TTL    time.Duration // of requests that have none
	Bound  time.Duration // of one Extend
	// Extend renews leases, and returns the outcome of each.
	Extend func(ctx context.Context, due []*Holding) []Extension
	// Split divides leases into calls of Extend; nil makes one call for all.
	Split func(due []*Holding) [][]*Holding
}

// Extension is the outcome of one renewal: Err if it is unknown.
type Extension struct {
	Ours bool
	Err  error
}

// Keeper renews leases in one loop.
type Keeper struct {
	Config
	wake chan struct{}

	mu    sync.Mutex
	held  map[string]*Holding // by owner
	armed boottime.Instant    // when the loop runs next
}

// Holding is one lease that is renewed.
type Holding struct {
	driver.Request
	lease *boottime.Lease
	due   boottime.Instant // guarded by Keeper.mu

	// mu is held during events, so that none is called after the release.
	mu       sync.Mutex
	quiet    bool
	released bool
}

// New returns a Keeper without leases.
func New(c Config) *Keeper {
	return &Keeper{Config: c, wake: make(chan struct{}, 1), held: map[string]*Holding{}, armed: Never}
}

// Add starts to renew a granted lease, which was requested at sent and may have ended.
func (k *Keeper) Add(r driver.Request, sent boottime.Instant) *boottime.Lease {
	return k.AddFor(r, sent, r.Lease(k.TTL), sent.Add(r.Every(k.TTL)))
}

// AddFor is Add for a first lease of another length, which is renewed at due.
func (k *Keeper) AddFor(r driver.Request, sent boottime.Instant, first time.Duration, due boottime.Instant) *boottime.Lease {
	l := boottime.NewLease(sent, first)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[r.Owner] = &Holding{Request: r, lease: l, due: due}
	if due < k.armed {
		hints.Signal(k.wake)
	}
	return l
}

// Remove stops the renewals and the events of an owner.
func (k *Keeper) Remove(owner string) {
	k.mu.Lock()
	h := k.held[owner]
	delete(k.held, owner)
	k.mu.Unlock()
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.quiet, h.released = true, true // a renewal must not lock it again
	}
}

// StopEvents ends the events of an owner's lease. It is renewed until a repeated Acquire
// adds it again. If that Acquire fails, no event may follow; otherwise the result
// of a renewal under way would be reported again for the new holding.
func (k *Keeper) StopEvents(owner string) {
	k.mu.Lock()
	h := k.held[owner]
	k.mu.Unlock()
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.quiet = true
	}
}

// Len returns the number of leases.
func (k *Keeper) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.held)
}

// IsReleased reports whether the owner was removed.
func (h *Holding) IsReleased() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.released
}

// Run renews leases until ctx ends.
func (k *Keeper) Run(ctx context.Context) { Loop(ctx, k.wake, k.next, k.renew) }

func (k *Keeper) next() boottime.Instant {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed = Never
	for _, h := range k.held {
		k.armed = min(k.armed, h.due)
	}
	return k.armed
}

// due returns the leases to be renewed now or soon, so that requests are few. It
// drops leases that have ended.
func (k *Keeper) due(now boottime.Instant) []*Holding {
	k.mu.Lock()
	defer k.mu.Unlock()
	var due []*Holding
	for owner, h := range k.held {
		switch {
		case h.lease.RemainingAt(now) <= 0:
			delete(k.held, owner)
		case h.due <= now.Add(h.Every(k.TTL)/4):
			due = append(due, h)
		}
	}
	return due
}

// renew extends all leases that are due.
func (k *Keeper) renew(ctx context.Context) {
	parts := [][]*Holding{k.due(boottime.Now())}
	if k.Split != nil {
		parts = k.Split(parts[0])
	}
	for _, part := range parts {
		if len(part) > 0 {
			k.extend(ctx, part)
		}
	}
}

func (k *Keeper) extend(ctx context.Context, due []*Holding) {
	bounded, cancel := context.WithTimeout(ctx, k.Bound)
	defer cancel()
	sent := boottime.Sent()
	extensions := k.Extend(bounded, due)
	if ctx.Err() != nil {
		return
	}
	took := boottime.Sent().Sub(sent)
	for i, h := range due {
		k.settle(h, sent, took, extensions[i])
	}
}

// settle reports the outcome of the renewal of one lease.
func (k *Keeper) settle(h *Holding, sent boottime.Instant, took time.Duration, e Extension) {
	switch {
	case e.Err != nil:
		now := boottime.Now()
		k.postpone(h, now.Add(min(time.Second, h.Lease(k.TTL)/10, max(h.lease.RemainingAt(now)/4, 10*time.Millisecond))))
		h.reportRenewed(took, e.Err)
	case e.Ours:
		h.lease.Renew(sent, h.Lease(k.TTL))
		k.postpone(h, sent.Add(h.Every(k.TTL)))
		h.reportRenewed(took, nil)
	default:
		k.lose(h)
	}
}

func (k *Keeper) postpone(h *Holding, due boottime.Instant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h.due = due
}

// lose drops a lease that the server has forgotten or granted to another owner. The
// loss is reported first, so that a release meanwhile still finds the lease and stops its events.
func (k *Keeper) lose(h *Holding) {
	expired := h.lease.Remaining() <= 0
	h.lease.End()
	h.reportLost(expired, k.Driver)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[h.Owner] == h {
		delete(k.held, h.Owner)
	}
}

// reportLost calls the last event, unless the lease had expired.
func (h *Holding) reportLost(expired bool, d failure.Driver) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if report := h.Events.Lost; report != nil && !h.quiet && !expired {
		report(d.New("renew", h.Name, interlock.Definite, interlock.ErrLost))
	}
	h.quiet = true
}

func (h *Holding) reportRenewed(took time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if report := h.Events.Renewed; report != nil && !h.quiet {
		report(took, err)
	}
}

// Never is a due time that is never reached.
const Never = boottime.Instant(1<<63 - 1)

// Loop calls work whenever next is due, until ctx ends; wake makes it read next
// again. Calls of work do not overlap; the first one is made at once.
func Loop(ctx context.Context, wake <-chan struct{}, next func() boottime.Instant, work func(context.Context)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
			work(ctx)
		}
		timer.Reset(max(0, next().Sub(boottime.Now())))
	}
}
