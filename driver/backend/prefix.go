package backend

import (
	"context"
	"errors"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// below adds a prefix to every name, for drivers without prefixes.
func below(prefix string, l Locks) Locks {
	if prefix == "" {
		return l
	}
	return &prefixed{&prefixedView{l, prefix}, l}
}

type prefixed struct {
	*prefixedView
	driver.Fenced
}

func (p *prefixed) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	name := r.Name
	r.Name = p.prefix + name
	g, err := p.Fenced.Acquire(ctx, r)
	return g, renamed(err, r.Name, name)
}

func (p *prefixed) Release(ctx context.Context, name, owner string) error {
	return renamed(p.Fenced.Release(ctx, p.prefix+name, owner), p.prefix+name, name)
}

// belowView does the same for a view.
func belowView(prefix string, v View) View {
	if prefix == "" {
		return v
	}
	return closedView{&prefixedView{v, prefix}, v.Close}
}

type closedView struct {
	*prefixedView
	close func(context.Context) error
}

func (v closedView) Close(ctx context.Context) error { return v.close(ctx) }

// viewer is the common part of locks and views.
type viewer interface {
	driver.Inspector
	driver.Watcher
	driver.Breaker
}

type prefixedView struct {
	viewer
	prefix string
}

func (p *prefixedView) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	locks, more, err := p.viewer.Locks(ctx, p.prefix+prefix, limit)
	for i := range locks {
		locks[i].Name = strings.TrimPrefix(locks[i].Name, p.prefix)
	}
	return locks, more, renamed(err, p.prefix+prefix, prefix)
}

func (p *prefixedView) Lock(ctx context.Context, name string) (driver.LockState, error) {
	state, err := p.viewer.Lock(ctx, p.prefix+name)
	state.Name = name
	return state, renamed(err, p.prefix+name, name)
}

func (p *prefixedView) Watch(ctx context.Context, prefix string, changed func(string)) error {
	return p.viewer.Watch(ctx, p.prefix+prefix, func(name string) { changed(strings.TrimPrefix(name, p.prefix)) })
}

func (p *prefixedView) Break(ctx context.Context, b driver.Break) (driver.BreakRecord, bool, error) {
	name := b.Name
	b.Name = p.prefix + name
	record, ok, err := p.viewer.Break(ctx, b)
	record.Name = name
	return record, ok, renamed(err, b.Name, name)
}

// Breaks without a name filters the newest records of all prefixes, and so may
// return fewer than exist.
func (p *prefixedView) Breaks(ctx context.Context, name string, limit int) ([]driver.BreakRecord, error) {
	if name == driver.BaseName { // all prefixes share it
		return p.viewer.Breaks(ctx, name, limit)
	}
	if name != "" {
		records, err := p.viewer.Breaks(ctx, p.prefix+name, limit)
		return p.own(records, limit), renamed(err, p.prefix+name, name)
	}
	const most = 10000
	records, err := p.viewer.Breaks(ctx, "", max(limit, most))
	return p.own(records, limit), err
}

func (p *prefixedView) own(records []driver.BreakRecord, limit int) (own []driver.BreakRecord) {
	for _, r := range records {
		if name, ok := strings.CutPrefix(r.Name, p.prefix); ok && len(own) < limit {
			r.Name = name
			own = append(own, r)
		}
	}
	return own
}

// renamed returns err with the caller's name of the lock.
func renamed(err error, from, to string) error {
	var e *interlock.Error
	var held *interlock.HeldError
	if errors.As(err, &e) && e.Name == from {
		e.Name = to
	}
	if errors.As(err, &held) && held.Name == from {
		held.Name = to
	}
	return err
}

// belowValues does the same for values.
func belowValues(prefix string, v driver.Values) driver.Values {
	if prefix == "" {
		return v
	}
	return &prefixedValues{v, prefix}
}

type prefixedValues struct {
	driver.Values
	prefix string
}

func (p *prefixedValues) Get(ctx context.Context, name string) (driver.Value, error) {
	v, err := p.Values.Get(ctx, p.prefix+name)
	return v, renamed(err, p.prefix+name, name)
}

func (p *prefixedValues) Put(ctx context.Context, name string, v driver.Value) error {
	return renamed(p.Values.Put(ctx, p.prefix+name, v), p.prefix+name, name)
}

func (p *prefixedValues) Watch(ctx context.Context, name string, each func(driver.Value)) error {
	return renamed(p.Values.Watch(ctx, p.prefix+name, each), p.prefix+name, name)
}
