package fence

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// Write is a key and the value that it gets; see [driver.Write].
type Write = driver.Write

// Store guards data in a key-value store that also stores the marks. It protects keys that are
// written through it. It protects reads after an Enter if all writers of those keys enter the
// same resource: the data may change between the read and the next Enter, and then that Enter
// fails.
//
// A store such as etcd keeps revisions of its keys. On it, Store reports to [observe.Fence]
// when a guarded write replaces a value that was written without the guard. That detects an
// unguarded write between an Enter and the next write of the same key under the same resource.
// It does not detect a deletion, nor a write before an Enter without writes. Redis and SQL
// databases keep no such revisions; use their grants and privileges to exclude other writers.
//
// It is safe for concurrent use if its driver is. It does not retry.
type Store struct {
	fence driver.Fence
	hooks *observe.Fence
}

// NewStore returns a Store on f, which a driver package provides. It logs writes that bypass
// the guard; see [Store.WithHooks].
func NewStore(f driver.Fence) *Store { return (&Store{fence: f}).WithHooks(nil) }

// WithHooks returns a Store on the same driver that reports to h; nil logs.
func (s *Store) WithHooks(h *observe.Fence) *Store {
	return &Store{fence: s.fence, hooks: h.WithDefaults()}
}

// Enter raises the mark of resource to the token of c and applies writes, both or neither, in
// one atomic step. Without writes it only raises the mark: call it so before the first read. If
// c has ended, it returns the cause; if the token is below the mark, an
// [interlock.StaleTokenError]. An Uncertain error means that both may have happened; a repeated
// call converges if the writes do.
func (s *Store) Enter(ctx context.Context, c interlock.Claim, resource string, writes ...driver.Write) error {
	return s.enter(ctx, c, resource, false, writes)
}

// EnterOnce is Enter that also rejects an equal token: each claim enters once. If a call
// returned an Uncertain error but succeeded, its repetition is rejected.
func (s *Store) EnterOnce(ctx context.Context, c interlock.Claim, resource string, writes ...driver.Write) error {
	return s.enter(ctx, c, resource, true, writes)
}

func (s *Store) enter(ctx context.Context, c interlock.Claim, resource string, strict bool, writes []driver.Write) error {
	if err := validateResource("enter", resource); err != nil {
		return err
	}
	if err := validateToken(resource, c.Token()); err != nil {
		return err
	}
	if !c.Valid() {
		return claimEnded(c, resource, nil)
	}
	raise := driver.Raise{Resource: resource, Token: c.Token(), Source: c.Owner(), Strict: strict, Bypassed: func(key string) {
		s.hooks.Bypassed(observe.FenceBypassed{Resource: resource, Key: key, Owner: c.Owner(), Token: c.Token()})
	}}
	return s.fence.Enter(ctx, raise, writes...)
}

// Show returns the mark of resource; without a mark its Token is 0.
func (s *Store) Show(ctx context.Context, resource string) (driver.Mark, error) {
	if err := validateResource("show mark", resource); err != nil {
		return driver.Mark{}, err
	}
	return s.fence.Mark(ctx, resource)
}

// Rebase sets the mark of resource to exactly `to`, with the obligations of [Table.Rebase]:
// reason and by must not be blank, and are stored with the mark.
func (s *Store) Rebase(ctx context.Context, resource string, to interlock.Token, reason, by string) (driver.Mark, error) {
	if err := validateResource("rebase", resource); err != nil {
		return driver.Mark{}, err
	}
	if err := validateRebase(resource, to, reason, by); err != nil {
		return driver.Mark{}, err
	}
	return s.fence.Rebase(ctx, resource, to, reason, by)
}
