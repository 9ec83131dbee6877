package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// batchSize is how many leases one statement renews.
const batchSize = 200

// keeper renews what one Table holds: one loop, whatever the number of locks.
type keeper struct {
	table  *Table
	wake   chan struct{}
	sweeps schedule // of the loop alone

	mu   sync.Mutex
	held map[string]*kept // by owner
}

// kept is one lease that is kept alive, guarded by keeper.mu.
type kept struct {
	driver.Request
	lease *boottime.Lease
	due   boottime.Instant
	quiet bool
}

func newKeeper(t *Table) *keeper {
	return &keeper{table: t, wake: make(chan struct{}, 1), held: map[string]*kept{},
		sweeps: schedule{boottime.Now().Add(sweepEvery)}}
}

// add begins to keep the lease that was asked for at sent, and was granted.
func (k *keeper) add(r driver.Request, sent boottime.Instant) (*boottime.Lease, error) {
	ttl := k.table.options.TTL
	l := boottime.NewLease(sent, r.Lease(ttl))
	if l.Remaining() <= 0 {
		return nil, problem("acquire", r.Name, interlock.Uncertain, interlock.ErrExpired)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[r.Owner] = &kept{Request: r, lease: l, due: sent.Add(r.Every(ttl))}
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
		for due := k.due(boottime.Now()); len(due) > 0; {
			n := k.alike(due)
			k.renew(due[:n])
			due = due[n:]
		}
		k.sweep(boottime.Now())
		timer.Reset(max(time.Millisecond, k.next().Sub(boottime.Now())))
	}
}

func (k *keeper) next() boottime.Instant {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := k.sweeps.next
	for _, h := range k.held {
		at = min(at, h.due)
	}
	return at
}

// due takes what is to be renewed now, and with it what soon would be. Leases
// whose time is over are dropped.
func (k *keeper) due(now boottime.Instant) (due []*kept) {
	k.mu.Lock()
	defer k.mu.Unlock()
	urgent := false
	for owner, h := range k.held {
		if h.lease.RemainingAt(now) <= 0 {
			delete(k.held, owner)
			continue
		}
		urgent = urgent || h.due <= now
		if h.due <= now.Add(h.Every(k.table.options.TTL)/4) {
			due = append(due, h)
		}
	}
	if !urgent {
		return nil
	}
	slices.SortFunc(due, func(a, b *kept) int { return cmp.Or(cmp.Compare(a.TTL, b.TTL), strings.Compare(a.Name, b.Name)) })
	return due
}

// alike is how many of the first ones one statement renews: they have one TTL.
func (k *keeper) alike(due []*kept) int {
	n := slices.IndexFunc(due, func(h *kept) bool { return h.TTL != due[0].TTL })
	if n < 0 {
		n = len(due)
	}
	return min(n, batchSize)
}

// Rows are found by their names, which have the index; an owner has one name.
const (
	keepRows = `set statement max_statement_time = {limit} for
update {ns}_lease set expires = {now} + interval ? microsecond
where name in ({n}) and owner in ({n}) and expires > {now}`
	keptRows = `select owner from {ns}_lease where name in ({n}) and owner in ({n}) and expires > {now}`
)

// renew extends the leases of a chunk in one statement, and asks which are still
// ours if not all are.
func (k *keeper) renew(chunk []*kept) {
	t := k.table
	ctx, cancel := context.WithTimeout(t.life, max(t.options.TTL/3, 100*time.Millisecond))
	defer cancel()
	names, owners := make([]any, len(chunk)), make([]any, len(chunk))
	for i, h := range chunk {
		names[i], owners[i] = []byte(h.Name), []byte(h.Owner)
	}
	places := strings.TrimSuffix(strings.Repeat("?,", len(chunk)), ",")
	query := func(text string) string { return strings.ReplaceAll(t.options.sql(text), "{n}", places) }
	which := append(names, owners...)

	gone := make(chan map[string]bool, 1) // the statement may outlast this call
	sent := boottime.Now()
	err := t.run(ctx, "renew", "", "", func(ctx context.Context) error {
		done, err := t.db.ExecContext(ctx, query(keepRows), append([]any{chunk[0].Lease(t.options.TTL).Microseconds()}, which...)...)
		if err != nil {
			return err
		}
		n, err := done.RowsAffected()
		if err != nil || n == int64(len(chunk)) {
			gone <- nil
			return err
		}
		ours := map[string]bool{}
		err = each(ctx, t.db, query(keptRows), which, func(rows *sql.Rows) error {
			var owner []byte
			err := rows.Scan(&owner)
			ours[string(owner)] = true
			return err
		})
		lost := map[string]bool{}
		for _, h := range chunk {
			lost[h.Owner] = !ours[h.Owner]
		}
		gone <- lost
		return err
	})
	var lost map[string]bool
	if err == nil {
		lost = <-gone
	}
	k.settle(chunk, sent, lost, err)
}

// settle tells what became of a renewal. Events are told under keeper.mu, so
// that none comes after a release.
func (k *keeper) settle(chunk []*kept, sent boottime.Instant, lost map[string]bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.table.life.Err() != nil {
		return
	}
	now, ttl := boottime.Now(), k.table.options.TTL
	for _, h := range chunk {
		switch {
		case k.held[h.Owner] != h: // released, or asked for again
		case err != nil:
			h.due = now.Add(min(time.Second, h.Lease(ttl)/10))
			h.tellRenewed(now.Sub(sent), err)
		case lost[h.Owner]:
			delete(k.held, h.Owner)
			h.tellLost()
		default:
			h.lease.Renew(sent, h.Lease(ttl))
			h.due = sent.Add(h.Every(ttl))
			h.tellRenewed(now.Sub(sent), nil)
		}
	}
}

func (h *kept) tellRenewed(took time.Duration, err error) {
	if tell := h.Events.Renewed; tell != nil && !h.quiet {
		tell(took, err)
	}
}

func (h *kept) tellLost() {
	ranOut := h.lease.Remaining() <= 0
	h.lease.End()
	if tell := h.Events.Lost; tell != nil && !h.quiet && !ranOut {
		tell(problem("renew", h.Name, interlock.Definite, interlock.ErrLost))
	}
}
