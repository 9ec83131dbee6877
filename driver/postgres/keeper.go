package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// keeper renews what one Table holds: one loop and one statement, whatever the
// number of locks.
type keeper struct {
	table *Table
	wake  chan struct{}

	mu    sync.Mutex
	held  map[string]*holding // by owner
	swept boottime.Instant
}

// holding is one lease that is kept alive, guarded by keeper.mu.
type holding struct {
	request driver.Request
	lease   *boottime.Lease
	due     boottime.Instant
	quiet   bool
}

func newKeeper(t *Table) *keeper {
	return &keeper{table: t, wake: make(chan struct{}, 1), held: map[string]*holding{}}
}

// add starts to keep the lease that was asked for at sent, and was granted.
func (k *keeper) add(r driver.Request, sent boottime.Instant) (*boottime.Lease, error) {
	l := boottime.NewLease(sent, r.Lease(k.table.ttl))
	if l.Remaining() <= 0 {
		return nil, problem("acquire", r.Name, interlock.Uncertain, interlock.ErrExpired)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[r.Owner] = &holding{request: r, lease: l, due: sent.Add(r.Every(k.table.ttl))}
	signal(k.wake)
	return l, nil
}

// remove stops renewing, and telling events.
func (k *keeper) remove(owner string) {
	k.hush(owner)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.held, owner)
}

// hush ends the events of what owner has, until a repeated Acquire adds it anew.
func (k *keeper) hush(owner string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.held[owner]; h != nil {
		h.quiet = true
	}
}

func (k *keeper) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-k.table.life.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		k.renew()
		k.sweep()
		timer.Reset(max(time.Millisecond, k.next().Sub(boottime.Now())))
	}
}

func (k *keeper) next() boottime.Instant {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := boottime.Now().Add(time.Hour)
	for _, h := range k.held {
		at = min(at, h.due)
	}
	return at
}

// due takes what is to be renewed now, and what soon would be. Leases whose
// time is over are dropped. If nothing is due now, nothing is taken.
func (k *keeper) due(now boottime.Instant) (names, owners []string, ttls []int64, taken map[string]*holding) {
	k.mu.Lock()
	defer k.mu.Unlock()
	taken = map[string]*holding{}
	urgent := false
	for owner, h := range k.held {
		if h.lease.RemainingAt(now) <= 0 {
			delete(k.held, owner)
			continue
		}
		urgent = urgent || h.due <= now
		if h.due <= now.Add(h.request.Every(k.table.ttl)/4) {
			names, owners = append(names, h.request.Name), append(owners, owner)
			ttls = append(ttls, h.request.Lease(k.table.ttl).Milliseconds())
			taken[owner] = h
		}
	}
	if !urgent {
		return nil, nil, nil, nil
	}
	return names, owners, ttls, taken
}

// renew extends all leases that are due, in one statement.
func (k *keeper) renew() {
	t := k.table
	names, owners, ttls, taken := k.due(boottime.Now())
	if len(names) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(t.life, max(t.ttl/3, 100*time.Millisecond))
	defer cancel()
	ours := map[string]bool{}
	sent := boottime.Now()
	err := t.rows(ctx, "renew", "", func(rows pgx.Rows) error {
		var owner string
		err := rows.Scan(&owner)
		ours[owner] = true
		return err
	}, keepRows, names, owners, ttls)
	k.settle(taken, sent, ours, err)
}

// settle tells what became of a renewal. Events are told under keeper.mu, so
// that none comes after a release.
func (k *keeper) settle(taken map[string]*holding, sent boottime.Instant, ours map[string]bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.table.life.Err() != nil {
		return
	}
	now := boottime.Now()
	for owner, h := range taken {
		switch {
		case k.held[owner] != h: // released, or asked for again
		case err != nil:
			h.due = now.Add(min(time.Second, h.request.Lease(k.table.ttl)/10))
			h.tellRenewed(now.Sub(sent), err)
		case ours[owner]:
			h.lease.Renew(sent, h.request.Lease(k.table.ttl))
			h.due = sent.Add(h.request.Every(k.table.ttl))
			h.tellRenewed(now.Sub(sent), nil)
		default:
			delete(k.held, owner)
			h.tellLost()
		}
	}
}

func (h *holding) tellRenewed(took time.Duration, err error) {
	if tell := h.request.Events.Renewed; tell != nil && !h.quiet {
		tell(took, err)
	}
}

func (h *holding) tellLost() {
	ranOut := h.lease.Remaining() <= 0
	h.lease.End()
	if tell := h.request.Events.Lost; tell != nil && !h.quiet && !ranOut {
		tell(problem("renew", h.request.Name, interlock.Definite, interlock.ErrLost))
	}
}

// sweep removes old rows, once an hour.
func (k *keeper) sweep() {
	now := boottime.Now()
	if k.swept != 0 && now < k.swept.Add(time.Hour) {
		return
	}
	k.swept = now
	ctx, cancel := context.WithTimeout(k.table.life, k.table.ttl/4) // what is held must be renewed
	defer cancel()
	// If it fails there is a next time.
	_ = k.table.rows(ctx, "sweep", "", func(pgx.Rows) error { return nil }, sweepRows, sweepSize)
}
