package own

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
)

// settle stores the layout if the group has none, and refuses if it has another.
func (g *Group) settle(ctx context.Context, want Layout) error {
	r, stored, err := g.view.read(ctx)
	if err == nil && !stored {
		err = g.locks.Do(ctx, g.view.names.layout(), func(ctx context.Context, c interlock.Claim) error {
			if r, stored, err = g.view.read(ctx); err != nil || stored {
				return err
			}
			r = record{Generation: 1, Layout: want}
			return g.write(ctx, c, r)
		})
	}
	if err != nil {
		return err
	}
	if !r.Layout.Equal(want) && (r.Next == nil || !r.Next.Equal(want)) {
		return &LayoutError{Group: g.view.names.group, Stored: r.Layout, Want: want}
	}
	return nil
}

// write stores the record under the claim on the layout.
func (g *Group) write(ctx context.Context, c interlock.Claim, r record) error {
	return g.view.values.Put(ctx, g.view.names.layout(), driver.Value{Data: r.encode(), Token: c.Token(), Source: c.Owner()})
}

// Resize changes the group's layout, and blocks until the change is in force or
// ctx ends. For as long as it takes to drain every partition nobody owns a key:
// that is how no key has two owners and its order is kept. If it returns early,
// for whatever reason, after the change was announced, the members finish it.
// Members that join from then on have to name the new layout.
func (g *Group) Resize(ctx context.Context, to Layout) error {
	if err := to.Validate(); err != nil {
		return err
	}
	return g.locks.Do(ctx, g.view.names.layout(), func(ctx context.Context, c interlock.Claim) error {
		r, err := g.change(ctx, c) // one that somebody did not finish comes first
		if err != nil || r.Layout.Equal(to) {
			return err
		}
		r.Next = &to
		if err := g.write(ctx, c, r); err != nil {
			return err
		}
		_, err = g.change(ctx, c)
		return err
	})
}

// change carries out the change that the record announces, if it does. It owns
// every partition of the old layout at once before it writes that the new one is
// in force: from then on nobody can own one of the old, because a new owner reads
// the record after it has its lock.
func (g *Group) change(ctx context.Context, c interlock.Claim) (record, error) {
	r, stored, err := g.view.read(ctx)
	if err != nil || !stored || r.Next == nil {
		return r, err
	}
	var taken []*lock.Claim
	defer func() {
		for _, claim := range taken {
			_ = claim.Release(ctx) // it expires otherwise
		}
	}()
	for i := range r.Layout.Count() {
		claim, err := g.locks.Acquire(ctx, g.view.names.partition(r.Generation, i))
		if err != nil {
			return r, err
		}
		taken = append(taken, claim)
	}
	for _, claim := range taken {
		if !claim.Valid() {
			return r, &interlock.Error{Op: "change layout", Name: g.view.names.group, Kind: interlock.Retryable,
				Err: errors.Join(errors.New("a partition was lost meanwhile"), context.Cause(claim.Context()))}
		}
	}
	r = record{Generation: r.Generation + 1, Layout: *r.Next}
	return r, g.write(ctx, c, r)
}

// finish carries out an announced change that nobody may be carrying out: it
// waits in line behind whoever is.
func (g *Group) finish() {
	for failures := 0; ; {
		err := g.locks.Do(g.ctx, g.view.names.layout(), func(ctx context.Context, c interlock.Claim) error {
			_, err := g.change(ctx, c)
			return err
		})
		if err == nil {
			break
		}
		if failures++; !g.pause(failures) {
			break
		}
	}
	g.mu.Lock()
	g.finishing = false
	g.mu.Unlock()
	g.view.look()
}
