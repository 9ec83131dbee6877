package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// A Fence is a key-value store that keeps the marks of resources beside its data,
// all of it in memory. It is the executable specification of driver.Fence: an Enter
// or a Rebase is one step under a mutex, by this process's clock. Use
// [Space.Fence].
type Fence struct {
	mu      sync.Mutex
	marks   map[string]driver.Mark
	data    map[string][]byte
	rebases map[string][]Rebase
}

var _ driver.Fence = (*Fence)(nil)

// A Rebase is the record of one call of [Fence.Rebase].
type Rebase struct {
	From, To   interlock.Token
	Reason, By string
	At         time.Time
}

func newFence() *Fence {
	return &Fence{marks: map[string]driver.Mark{}, data: map[string][]byte{}, rebases: map[string][]Rebase{}}
}

// Fence returns the space's one guarded store.
func (s *Space) Fence() *Fence { return s.fence }

// Enter checks the token, raises the mark and applies the writes in their order,
// in one step; see driver.Fence. A key may be written several times, and may not
// be empty. An equal token renews the mark's source and time.
func (f *Fence) Enter(ctx context.Context, r driver.Raise, writes ...driver.Write) error {
	const op = "enter"
	if err := entering(ctx, r, writes); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now, seen := time.Now(), f.marks[r.Resource].Token
	if seen > r.Token || seen == r.Token && r.Strict {
		return fail.New(op, r.Resource, interlock.Definite,
			&interlock.StaleTokenError{Resource: r.Resource, Seen: seen, Got: r.Token})
	}
	if err := plausible(op, r.Resource, r.Token, now); err != nil {
		return err
	}
	f.marks[r.Resource] = driver.Mark{Token: r.Token, Source: r.Source, Raised: now}
	for _, w := range writes {
		if w.Delete {
			delete(f.data, w.Key)
			continue
		}
		f.data[w.Key] = slices.Clone(w.Value)
	}
	return nil
}

// Mark returns the mark of a resource; see driver.Fence.
func (f *Fence) Mark(ctx context.Context, resource string) (driver.Mark, error) {
	if err := asking(ctx, "show mark", resource); err != nil {
		return driver.Mark{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.marks[resource], nil
}

// Rebase sets the mark and records it in one step; see driver.Fence. The mark's
// source is then driver.RebaseSource.
func (f *Fence) Rebase(ctx context.Context, resource string, to interlock.Token, reason, by string) (driver.Mark, error) {
	const op = "rebase mark"
	if err := asking(ctx, op, resource); err != nil {
		return driver.Mark{}, err
	}
	if to != 0 && !to.Valid() {
		return driver.Mark{}, noToken(op, resource, to)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now, old := time.Now(), f.marks[resource]
	if err := plausible(op, resource, to, now); err != nil {
		return driver.Mark{}, err
	}
	f.rebases[resource] = append(f.rebases[resource], Rebase{From: old.Token, To: to, Reason: reason, By: by, At: now})
	f.marks[resource] = driver.Mark{Token: to, Source: driver.RebaseSource(by, reason), Raised: now}
	return old, nil
}

// Get reads a key without the guard; false if there is none. The caller owns the
// value. It blocks no longer than an Enter takes.
func (f *Fence) Get(key string) (value []byte, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	value, ok = f.data[key]
	return slices.Clone(value), ok
}

// Rebases returns the rebases of a resource, the oldest first.
func (f *Fence) Rebases(resource string) []Rebase {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.rebases[resource])
}

// entering rejects arguments that are invalid in every state of the store.
func entering(ctx context.Context, r driver.Raise, writes []driver.Write) error {
	const op = "enter"
	if err := asking(ctx, op, r.Resource); err != nil {
		return err
	}
	if !r.Token.Valid() {
		return noToken(op, r.Resource, r.Token)
	}
	if slices.ContainsFunc(writes, func(w driver.Write) bool { return w.Key == "" }) {
		return fail.New(op, r.Resource, interlock.Bug, errors.New("a key to be written is empty"))
	}
	return nil
}

func asking(ctx context.Context, op, resource string) error {
	switch {
	case resource == "" || len(resource) > driver.MaxName:
		return fail.New(op, resource, interlock.Bug, interlock.ErrName)
	case ctx.Err() != nil:
		return fail.Unsent(ctx, op, resource)
	}
	return nil
}

// plausible rejects a token that no counter can have reached.
func plausible(op, resource string, t interlock.Token, now time.Time) error {
	if t.Counter() <= interlock.CounterAt(now.Add(interlock.MaxAhead)) {
		return nil
	}
	return fail.New(op, resource, interlock.Definite, fmt.Errorf("%w: %d is more than %v ahead of the clock",
		interlock.ErrImplausibleToken, int64(t), interlock.MaxAhead))
}

func noToken(op, resource string, t interlock.Token) error {
	return fail.New(op, resource, interlock.Bug, fmt.Errorf("%d is not a token", int64(t)))
}
