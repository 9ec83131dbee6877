package leasetable

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/renewal"
)

// alike divides leases by statement: one renews leases of one TTL, in the order of their names.
func (t *Table) alike(due []*renewal.Holding) (parts [][]*renewal.Holding) {
	slices.SortFunc(due, func(a, b *renewal.Holding) int {
		return cmp.Or(cmp.Compare(a.TTL, b.TTL), strings.Compare(a.Name, b.Name))
	})
	for len(due) > 0 {
		n := slices.IndexFunc(due, func(h *renewal.Holding) bool { return h.TTL != due[0].TTL })
		if n < 0 {
			n = len(due)
		}
		n = min(n, t.Batch)
		parts, due = append(parts, due[:n]), due[n:]
	}
	return parts
}

// extend extends leases of one TTL by one statement. If a row is locked for long, it extends the
// others.
func (t *Table) extend(ctx context.Context, due []*renewal.Holding) []renewal.Extension {
	extensions, held := t.extendWithin(ctx, due, min(due[0].Lease(t.TTL)/12, 250*time.Millisecond))
	if held {
		return t.extendUnlocked(ctx, due)
	}
	return extensions
}

// extendUnlocked extends the leases whose rows are not locked. It finds them by halves.
func (t *Table) extendUnlocked(ctx context.Context, due []*renewal.Holding) []renewal.Extension {
	extensions, held := t.extendWithin(ctx, due, 0)
	if half := len(due) / 2; held && half > 0 {
		return append(t.extendUnlocked(ctx, due[:half]), t.extendUnlocked(ctx, due[half:])...)
	}
	return extensions
}

// extendWithin extends leases by one statement. held reports that a row was locked for longer than
// patience.
func (t *Table) extendWithin(ctx context.Context, due []*renewal.Holding, patience time.Duration) (extensions []renewal.Extension, held bool) {
	var names, owners []string
	for _, h := range due {
		names, owners = append(names, h.Name), append(owners, h.Owner)
	}
	lost, err := t.rows.Renew(ctx, names, owners, due[0].Lease(t.TTL), patience)
	extensions = make([]renewal.Extension, len(due))
	for i, owner := range owners {
		extensions[i] = renewal.Extension{Ours: !slices.Contains(lost, owner), Err: err}
	}
	return extensions, errors.Is(err, interlock.ErrHeld)
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
func (t *Table) sweep(life context.Context) {
	if !t.Sweeps.Due(boottime.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(life, t.TTL/4)
	defer cancel()
	if more, err := t.rows.Sweep(ctx); err == nil && more {
		t.Sweeps.Next = boottime.Now()
	}
}
