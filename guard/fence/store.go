package fence

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// Store guards data in a key-value store that keeps the marks too. It protects
// keys that are written through it, and reads that follow an Enter as far as
// all writers of those keys enter the same resource: what is read may change
// between the read and the next Enter, which then is refused.
//
// Where the store keeps revisions of its keys, as etcd does, a guarded write that
// replaces a value which was written without the guard is reported to
// [observe.Fence]. That finds what comes between an Enter and the next write of
// the same key under the same resource; it does not find a deletion, nor a write before
// an Enter without writes. Redis and SQL databases keep no such revisions: there it is
// for grants and privileges to keep other writers out.
//
// It is safe for concurrent use if its driver is. It retries nothing.
type Store struct {
	fence driver.Fence
	hooks *observe.Fence
}

// NewStore guards by f, which a driver package provides. It logs writes that bypass
// the guard; see [Store.WithHooks].
func NewStore(f driver.Fence) *Store { return (&Store{fence: f}).WithHooks(nil) }

// WithHooks returns a Store on the same driver that reports to h; nil logs.
func (s *Store) WithHooks(h *observe.Fence) *Store {
	return &Store{fence: s.fence, hooks: h.WithDefaults()}
}

// Enter raises the mark of resource to the token of c and applies writes, both
// or neither, in one atomic step. Without writes it only enters: do that before
// the first read. It refuses a claim that has ended with the cause, and a token
// below the mark with an [interlock.StaleTokenError]. An Uncertain error means
// that both may have happened; calling it again converges if the writes do.
func (s *Store) Enter(ctx context.Context, c interlock.Claim, resource string, writes ...driver.Write) error {
	return s.enter(ctx, c, resource, false, writes)
}

// EnterOnce is Enter that refuses an equal token too: each claim enters once,
// and a repetition after an Uncertain error is refused if the first one worked.
func (s *Store) EnterOnce(ctx context.Context, c interlock.Claim, resource string, writes ...driver.Write) error {
	return s.enter(ctx, c, resource, true, writes)
}

func (s *Store) enter(ctx context.Context, c interlock.Claim, resource string, strict bool, writes []driver.Write) error {
	if err := named("enter", resource); err != nil {
		return err
	}
	if err := issued(resource, c.Token()); err != nil {
		return err
	}
	if !c.Valid() {
		return over(c, resource, nil)
	}
	raise := driver.Raise{Resource: resource, Token: c.Token(), Source: c.Owner(), Strict: strict, Bypassed: func(key string) {
		s.hooks.Bypassed(observe.FenceBypassed{Resource: resource, Key: key, Owner: c.Owner(), Token: c.Token()})
	}}
	return s.fence.Enter(ctx, raise, writes...)
}

// Show tells the mark of resource; one that nothing entered has Token 0.
func (s *Store) Show(ctx context.Context, resource string) (driver.Mark, error) {
	if err := named("show mark", resource); err != nil {
		return driver.Mark{}, err
	}
	return s.fence.Mark(ctx, resource)
}

// Rebase sets the mark of resource to exactly `to`, and has the obligations of
// [Table.Rebase]: reason and by must not be blank, and are kept with it.
func (s *Store) Rebase(ctx context.Context, resource string, to interlock.Token, reason, by string) (driver.Mark, error) {
	if err := named("rebase", resource); err != nil {
		return driver.Mark{}, err
	}
	if err := answerable(resource, to, reason, by); err != nil {
		return driver.Mark{}, err
	}
	return s.fence.Rebase(ctx, resource, to, reason, by)
}
