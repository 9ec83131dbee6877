package partition

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
)

// changer is a member that holds the lock on the layout.
type changer struct {
	*Group
	claim interlock.Claim // on the layout's lock
}

// turn runs do under the lock on the layout.
func (g *Group) turn(ctx context.Context, do func(context.Context, changer) error) error {
	return g.locks.Do(ctx, g.view.names.layout(), func(ctx context.Context, claim interlock.Claim) error {
		c := changer{g, claim}
		if err := c.enter(ctx); err != nil {
			return err
		}
		return do(ctx, c)
	})
}

// enter raises the mark before the record is read, so that the previous holder of the lock
// cannot enter any more.
func (c changer) enter(ctx context.Context) error {
	return c.put(ctx, c.view.names.turn(), []byte("{}"))
}

func (c changer) put(ctx context.Context, name string, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, patience(c.view.d.Guarantees()))
	defer cancel()
	return c.view.values.Put(ctx, name, driver.Value{Data: data, Token: c.claim.Token(), Source: c.claim.Owner()})
}

// settle stores the layout if the group has none, and returns an error if it has another.
func (g *Group) settle(ctx context.Context, want Layout) error {
	r, stored, err := g.view.read(ctx)
	if err == nil && !stored {
		err = g.turn(ctx, func(ctx context.Context, c changer) error {
			if r, err = c.change(ctx); err == nil && r.Generation == 0 {
				r, err = c.to(ctx, r, want)
			}
			return err
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

// Resize changes the group's layout, and blocks until the change is in force or ctx ends. All
// partitions drain first, and meanwhile no key has an owner. So no key has two owners, and its
// order is kept. If Resize returns early after it announced the change, the members complete
// the change. Members that join after that must use the new layout.
func (g *Group) Resize(ctx context.Context, to Layout) error {
	if err := to.Validate(); err != nil {
		return err
	}
	return g.turn(ctx, func(ctx context.Context, c changer) error {
		r, err := c.change(ctx) // an unfinished one comes first
		if err == nil && !r.Layout.Equal(to) {
			_, err = c.to(ctx, r, to)
		}
		return err
	})
}

// to changes the layout from that of r to next. If no other holder entered after the change
// was announced, every later holder of the lock finds the announcement.
func (c changer) to(ctx context.Context, r record, next Layout) (record, error) {
	r.Next = &next
	err := c.put(ctx, c.view.names.layout(), r.encode())
	if err == nil {
		err = c.enter(ctx)
	}
	if err != nil {
		return r, err
	}
	return c.change(ctx)
}

// change carries out the change that the record announces, if any. It holds every partition of
// the old layout at once before it writes that the new one is in force. From then on no member
// can own a partition of the old layout, because a new owner reads the record after it has its
// lock.
func (c changer) change(ctx context.Context) (record, error) {
	r, _, err := c.view.read(ctx)
	if err != nil || r.Next == nil {
		return r, err
	}
	var taken lock.Claims
	defer func() { _ = taken.Release(ctx) }() // they expire otherwise
	for i := range r.Layout.Count() {
		claim, err := c.locks.Acquire(ctx, c.view.names.partition(r.Generation, i))
		if err != nil {
			return r, err
		}
		taken = append(taken, claim)
	}
	for _, claim := range taken {
		if !claim.Valid() {
			return r, &interlock.Error{Op: "change layout", Name: c.view.names.group, Kind: interlock.Retryable,
				Err: errors.Join(errors.New("a partition was lost meanwhile"), context.Cause(claim.Context()))}
		}
	}
	r = record{Generation: r.Generation + 1, Layout: *r.Next}
	return r, c.put(ctx, c.view.names.layout(), r.encode())
}

// finish carries out an announced change if no other member does: it queues for the lock on the
// layout.
func (g *Group) finish() {
	for failures := 0; ; {
		err := g.turn(g.ctx, func(ctx context.Context, c changer) error {
			_, err := c.change(ctx)
			return err
		})
		if err == nil {
			break
		}
		g.failed(err)
		if failures++; !retries.Wait(g.ctx, failures) {
			break
		}
	}
	g.mu.Lock()
	g.finishing = false
	g.mu.Unlock()
	g.view.hints.Miss()
}
