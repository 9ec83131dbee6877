package redis

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/hints"
)

// keeper renews the leases of one driver in one loop.
type keeper struct {
	extend extender
	ttl    time.Duration
	wake   chan struct{}
	retry  time.Duration // after a failed renewal
	bound  time.Duration // of one renewal

	mu    sync.Mutex
	held  map[string]*holding // by owner
	armed boottime.Instant    // when the loop runs next
}

// holding is one lease that is renewed.
type holding struct {
	request driver.Request
	lock    string // the key
	lease   *boottime.Lease
	due     boottime.Instant // guarded by keeper.mu

	// mu is held during events, so that none is called after the release.
	mu       sync.Mutex
	quiet    bool
	released bool
}

// extender renews leases, and returns the outcome of each.
type extender func(ctx context.Context, due []*holding) []extension

// extension is the outcome of one renewal: err if it is unknown.
type extension struct {
	ours bool
	err  error
}

func newKeeper(extend extender, ttl time.Duration) *keeper {
	return &keeper{extend: extend, ttl: ttl, wake: make(chan struct{}, 1), retry: min(time.Second, ttl/10), bound: min(time.Second, ttl/3),
		held: map[string]*holding{}, armed: never}
}

// patient extends the bound of a renewal by the time that its confirmation may take.
func (k *keeper) patient(s Settings) *keeper {
	if s.Fsync {
		k.bound = min(silence+fsyncFor, k.ttl/3)
	}
	return k
}

// add starts to renew a granted lease, which was requested at sent and may have ended.
func (k *keeper) add(r driver.Request, lock string, sent boottime.Instant) *boottime.Lease {
	return k.addFor(r, lock, sent, r.Lease(k.ttl), sent.Add(r.Every(k.ttl)))
}

// addFor is add for a first lease of another length, which is renewed at due.
func (k *keeper) addFor(r driver.Request, lock string, sent boottime.Instant, first time.Duration, due boottime.Instant) *boottime.Lease {
	l := boottime.NewLease(sent, first)
	h := &holding{request: r, lock: lock, lease: l, due: due}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[r.Owner] = h
	if h.due < k.armed {
		hints.Signal(k.wake)
	}
	return l
}

// remove stops renewals and events. It returns nil if owner holds nothing.
func (k *keeper) remove(owner string) *holding {
	k.mu.Lock()
	h := k.held[owner]
	delete(k.held, owner)
	k.mu.Unlock()
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.quiet, h.released = true, true // a renewal must not lock it again
	}
	return h
}

// stopEvents ends the events of owner's lease. It is renewed until a repeated Acquire
// adds it again. If that Acquire fails, no event may follow; otherwise the result
// of a renewal under way would be reported again for the new holding.
func (k *keeper) stopEvents(owner string) {
	k.mu.Lock()
	h := k.held[owner]
	k.mu.Unlock()
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.quiet = true
	}
}

func (h *holding) isReleased() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.released
}

func (k *keeper) run(ctx context.Context) { loop(ctx, k.wake, k.next, k.renew) }

func (k *keeper) next() boottime.Instant {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed = never
	for _, h := range k.held {
		k.armed = min(k.armed, h.due)
	}
	return k.armed
}

// due returns the leases to be renewed now or soon, so that requests are few. It
// drops leases that have ended.
func (k *keeper) due(now boottime.Instant) []*holding {
	k.mu.Lock()
	defer k.mu.Unlock()
	var due []*holding
	for owner, h := range k.held {
		switch {
		case h.lease.RemainingAt(now) <= 0:
			delete(k.held, owner)
		case h.due <= now.Add(h.request.Every(k.ttl)/4):
			due = append(due, h)
		}
	}
	return due
}

// renew extends all leases that are due.
func (k *keeper) renew(ctx context.Context) {
	due := k.due(boottime.Now())
	if len(due) == 0 {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, k.bound)
	defer cancel()
	sent := boottime.Sent()
	extensions := k.extend(bounded, due)
	if ctx.Err() != nil {
		return
	}
	took := boottime.Sent().Sub(sent)
	for i, h := range due {
		k.settle(h, sent, took, extensions[i])
	}
}

// settle reports the outcome of the renewal of one lease.
func (k *keeper) settle(h *holding, sent boottime.Instant, took time.Duration, e extension) {
	switch {
	case e.err != nil:
		now := boottime.Now()
		k.postpone(h, now.Add(min(k.retry, h.request.Lease(k.ttl)/10, max(h.lease.RemainingAt(now)/4, 10*time.Millisecond))))
		h.reportRenewed(took, e.err)
	case e.ours:
		h.lease.Renew(sent, h.request.Lease(k.ttl))
		k.postpone(h, sent.Add(h.request.Every(k.ttl)))
		h.reportRenewed(took, nil)
	default:
		k.lose(h)
	}
}

func (k *keeper) postpone(h *holding, due boottime.Instant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h.due = due
}

// lose drops a lease that the server has forgotten or granted to another owner. The
// loss is reported first, so that a release meanwhile still finds the lease and stops its events.
func (k *keeper) lose(h *holding) {
	h.lease.End()
	h.reportLost()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[h.request.Owner] == h {
		delete(k.held, h.request.Owner)
	}
}

// reportLost calls the last event.
func (h *holding) reportLost() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if report := h.request.Events.Lost; report != nil && !h.quiet {
		report(problem(request{op: "renew", name: h.request.Name}, interlock.Definite, interlock.ErrLost))
	}
	h.quiet = true
}

func (h *holding) reportRenewed(took time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if report := h.request.Events.Renewed; report != nil && !h.quiet {
		report(took, err)
	}
}
