package leasetable

import (
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// A Show reads states of locks; see [Rows].
type Show func(ctx context.Context, op, name string, prefix bool, limit int) ([]driver.LockState, error)

// One returns the state of one name; see driver.Inspector.
func (show Show) One(ctx context.Context, d failure.Driver, name string) (driver.LockState, error) {
	state := driver.LockState{Name: name}
	if err := d.CheckNames("inspect", name, "-"); err != nil {
		return state, err
	}
	found, err := show(ctx, "inspect", name, false, 1)
	if err != nil || len(found) == 0 {
		return state, err
	}
	return found[0], nil
}

// List returns the states of the names with a prefix; see driver.Inspector.
func (show Show) List(ctx context.Context, prefix string, limit int) (_ []driver.LockState, more bool, err error) {
	limit = min(max(limit, 0), math.MaxInt-1)
	locks, err := show(ctx, "list", prefix, true, limit+1)
	if err != nil || len(locks) <= limit {
		return locks, false, err
	}
	return locks[:limit], true, nil
}

// State returns the state of a name that an owner holds.
func State(name, owner string, counter int64, since time.Time, left time.Duration) (driver.LockState, error) {
	token, err := interlock.NewToken(counter, 0)
	return driver.LockState{Name: name, Holder: &driver.Contender{Owner: owner, Token: token, Since: since, Expires: left}}, err
}

// Broken returns the record of a break. A counter of 0 means a lock without a token.
func Broken(b driver.Break, counter int64, at time.Time) (record driver.BreakRecord, err error) {
	record = driver.BreakRecord{Break: b, At: at}
	if counter != 0 {
		record.Token, err = interlock.NewToken(counter, 0)
	}
	return record, err
}

// UncertainBreak returns an error after a break was recorded, when it may have taken effect.
func UncertainBreak(d failure.Driver, name string, err error) error {
	if interlock.Kind(err) == interlock.Retryable {
		return d.New("break", name, interlock.Uncertain, err)
	}
	return err
}

// show calls Rows.Show, unless the table is closed.
func (t *Table) show(ctx context.Context, op, name string, prefix bool, limit int) ([]driver.LockState, error) {
	if err := t.usable(ctx, op, name); err != nil {
		return nil, err
	}
	return t.rows.Show(ctx, op, name, prefix, limit)
}

// Lock returns the state of one name, without waiters; see driver.Inspector.
func (t *Table) Lock(ctx context.Context, name string) (driver.LockState, error) {
	return Show(t.show).One(ctx, t.Driver, name)
}

// Locks lists names; see driver.Inspector.
func (t *Table) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	return Show(t.show).List(ctx, prefix, limit)
}

// Break revokes a lock and records that; see driver.Breaker. The holder learns it at its
// next renewal.
func (t *Table) Break(ctx context.Context, b driver.Break) (driver.BreakRecord, bool, error) {
	err := t.Driver.CheckBreak(b)
	if err == nil {
		err = t.usable(ctx, "break", b.Name)
	}
	if err != nil {
		return driver.BreakRecord{}, false, err
	}
	record, err := t.rows.Break(ctx, b)
	if err != nil || record == nil {
		return driver.BreakRecord{}, false, err
	}
	t.Wake(b.Name)
	return *record, true, nil
}

// Breaks returns the records of breaks, which only an operator deletes.
func (t *Table) Breaks(ctx context.Context, name string, limit int) ([]driver.BreakRecord, error) {
	if err := t.usable(ctx, "list breaks", name); err != nil {
		return nil, err
	}
	return t.rows.Breaks(ctx, name, max(limit, 0))
}

// Watch reports when holders change; see driver.Watcher. It reads the table about four
// times a second, one statement each: use it for interactive tools and few watchers.
func (t *Table) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	if err := t.usable(ctx, "watch", prefix); err != nil {
		return err
	}
	w := Watch{Driver: t.Driver, Life: t.life, States: t.rows.States}
	return w.Run(ctx, prefix, changed)
}

// watchEvery is the average interval of a watch's reads.
const watchEvery = 250 * time.Millisecond

// Watch polls for changes.
type Watch struct {
	Driver failure.Driver
	Life   context.Context // of the watched driver
	States func(ctx context.Context, prefix string) (map[string]string, error)
}

// Run reports names whose state changed until ctx or Life ends, or States fails.
func (w Watch) Run(ctx context.Context, prefix string, changed func(name string)) error {
	before, err := w.States(ctx, prefix)
	if err != nil {
		return err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for changed(""); ; {
		timer.Reset(watchEvery*3/4 + rand.N(watchEvery/2))
		select {
		case <-ctx.Done():
			return w.Driver.Unsent(ctx, "watch", prefix)
		case <-w.Life.Done():
			return w.Driver.Closed("watch", prefix)
		case <-timer.C:
		}
		now, err := w.States(ctx, prefix)
		if err != nil {
			return err
		}
		for _, name := range differing(before, now) {
			changed(name)
		}
		before = now
	}
}

// differing returns the names whose states differ, in order.
func differing(before, now map[string]string) []string {
	names := map[string]bool{}
	for name, state := range now {
		if was, known := before[name]; !known || was != state {
			names[name] = true
		}
	}
	for name := range before {
		if _, known := now[name]; !known {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
