package leasetable

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/hints"
)

// keeper renews the leases of one Table in one loop.
type keeper struct {
	table *Table
	wake  chan struct{}

	mu   sync.Mutex
	held map[string]*holding // by owner
	at   boottime.Instant    // the next wake-up of run
}

// holding is a renewed lease, guarded by keeper.mu.
type holding struct {
	driver.Request
	lease  *boottime.Lease
	due    boottime.Instant
	silent bool // its events are not reported
}

// add starts the renewals of a lease.
func (k *keeper) add(r driver.Request, lease *boottime.Lease, sent boottime.Instant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := &holding{Request: r, lease: lease, due: sent.Add(r.Every(k.table.TTL))}
	if k.held[r.Owner] = h; h.due < k.at {
		k.at = h.due
		hints.Signal(k.wake)
	}
}

// remove stops the renewals and the events of an owner.
func (k *keeper) remove(owner string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.held, owner)
}

// silence stops the events of an owner, until a repeated Acquire adds it again.
func (k *keeper) silence(owner string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.held[owner]; h != nil {
		h.silent = true
	}
}

func (k *keeper) run(life context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-life.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		for due := k.due(boottime.Now()); len(due) > 0; {
			n := k.alike(due)
			k.renew(due[:n])
			due = due[n:]
		}
		k.sweep(boottime.Now())
		timer.Reset(max(time.Millisecond, k.next().Sub(boottime.Now())))
	}
}

// next returns the time of the next renewal or sweep.
func (k *keeper) next() boottime.Instant {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := k.table.Sweeps.Next
	for _, h := range k.held {
		at = min(at, h.due)
	}
	k.at = at
	return at
}

// due returns the leases to renew now and, if there are any, those that are due soon. It
// drops expired leases.
func (k *keeper) due(now boottime.Instant) (due []*holding) {
	k.mu.Lock()
	defer k.mu.Unlock()
	urgent := false
	for owner, h := range k.held {
		if h.lease.RemainingAt(now) <= 0 {
			delete(k.held, owner)
			continue
		}
		urgent = urgent || h.due <= now
		if h.due <= now.Add(h.Every(k.table.TTL)/4) {
			due = append(due, h)
		}
	}
	if !urgent {
		return nil
	}
	slices.SortFunc(due, func(a, b *holding) int { return cmp.Or(cmp.Compare(a.TTL, b.TTL), strings.Compare(a.Name, b.Name)) })
	return due
}

// alike returns how many of the first leases one statement can renew: they have one TTL.
func (k *keeper) alike(due []*holding) int {
	n := slices.IndexFunc(due, func(h *holding) bool { return h.TTL != due[0].TTL })
	if n < 0 {
		n = len(due)
	}
	return min(n, k.table.Batch)
}

// renew extends leases of one TTL.
func (k *keeper) renew(due []*holding) {
	t := k.table
	ctx, cancel := context.WithTimeout(t.life, max(t.TTL/3, 100*time.Millisecond))
	defer cancel()
	var names, owners []string
	for _, h := range due {
		names, owners = append(names, h.Name), append(owners, h.Owner)
	}
	sent := boottime.Now()
	lost, err := t.rows.Renew(ctx, names, owners, due[0].Lease(t.TTL))
	k.settle(due, sent, lost, err)
}

// settle applies the result of a renewal. It reports events under keeper.mu, so that none
// follows a release.
func (k *keeper) settle(due []*holding, sent boottime.Instant, lost []string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.table.life.Err() != nil {
		return
	}
	now, ttl := boottime.Now(), k.table.TTL
	for _, h := range due {
		switch {
		case k.held[h.Owner] != h: // released, or requested again
		case err != nil:
			h.due = now.Add(min(time.Second, h.Lease(ttl)/10))
			h.reportRenewed(now.Sub(sent), err)
		case slices.Contains(lost, h.Owner):
			delete(k.held, h.Owner)
			h.reportLost(k.table.Driver.New("renew", h.Name, interlock.Definite, interlock.ErrLost))
		default:
			h.lease.Renew(sent, h.Lease(ttl))
			h.due = sent.Add(h.Every(ttl))
			h.reportRenewed(now.Sub(sent), nil)
		}
	}
}

func (h *holding) reportRenewed(took time.Duration, err error) {
	if report := h.Events.Renewed; report != nil && !h.silent {
		report(took, err)
	}
}

// reportLost ends the lease. It does not report expiry.
func (h *holding) reportLost(err error) {
	expired := h.lease.Remaining() <= 0
	h.lease.End()
	if report := h.Events.Lost; report != nil && !h.silent && !expired {
		report(err)
	}
}

// Schedule is the time of sweeps: at an interval, and at once if more rows are left.
type Schedule struct {
	Every time.Duration
	Next  boottime.Instant
}

// Due reports whether a sweep is due, and sets the next one.
func (s *Schedule) Due(now boottime.Instant) bool {
	if now < s.Next {
		return false
	}
	s.Next = now.Add(s.Every)
	return true
}

// sweep removes rows when due. If it fails, the next sweep repeats it.
func (k *keeper) sweep(now boottime.Instant) {
	t := k.table
	if !t.Sweeps.Due(now) {
		return
	}
	ctx, cancel := context.WithTimeout(t.life, t.TTL/4) // leases must be renewed
	defer cancel()
	if more, err := t.rows.Sweep(ctx); err == nil && more {
		t.Sweeps.Next = now
	}
}
