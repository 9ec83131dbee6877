package crdt

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// A Store keeps values by name. Names of different types are different names. It retries nothing,
// and is safe for concurrent use. A [Share] retries.
type Store struct{ lattices driver.Lattices }

// NewStore keeps values in redis.NewLattices or memory.NewLattices.
func NewStore(in driver.Lattices) *Store { return &Store{in} }

// path is where a type's names are; it never changes.
func path(k kind, name string) string { return k.String() + "/" + name }

// Merge joins a delta, or a whole value, into the value of a name, by one request. After an
// Uncertain error the same call converges. An empty or too long name is a Bug.
func (s *Store) Merge(ctx context.Context, name string, delta Type) error {
	if name == "" {
		return bug("merge", name, interlock.ErrName)
	}
	return s.lattices.Merge(ctx, path(delta.kind(), name), *delta.state(), nil)
}

// Load replaces the value by that of a name; the zero value if there is none. If what is stored
// is no value of the type, the error is Definite.
func (s *Store) Load(ctx context.Context, name string, value Type) error {
	if name == "" {
		return bug("load", name, interlock.ErrName)
	}
	l, err := s.lattices.Load(ctx, path(value.kind(), name))
	if err != nil {
		return err
	}
	if err = replace(value, l); err != nil {
		return problem("load", name, interlock.Definite, err)
	}
	return nil
}

// A Share is one replica's part of a [Bounded] counter in a store. Its methods store an operation
// under the replica's token before they return, and are safe for concurrent use.
type Share struct {
	store         *Store
	name, replica string
	guard         driver.Raise

	mu    sync.Mutex
	known Bounded
}

// Share opens a replica's share of the counter of a name, under the token of the claim of the
// replica's name. From then on the store refuses all writers of this share with lower tokens, so
// the share is as they left it. To recover the units of a dead region, take its claim, open its
// share in the store that it used, and Move them.
//
// Each replica has one store in which it writes. Other stores may have copies of its operations,
// by Merge of whole values; never open the share there. On a Redis Cluster name needs a {tag}.
//
// If a higher token has entered, the error is an interlock.ErrStaleToken.
func (s *Store) Share(ctx context.Context, name, replica string, token interlock.Token) (*Share, error) {
	const op = "open share"
	if err := checkReplica(op, replica); err != nil {
		return nil, err
	}
	if err := driver.CheckName(op, "a counter", name, driver.MaxName); err != nil {
		return nil, err
	}
	h := &Share{store: s, name: name, replica: replica}
	h.guard = driver.Raise{Resource: path(bounded, name) + "/" + replica, Token: token, Source: replica}
	if err := h.write(ctx, Bounded{}); err != nil {
		return nil, err
	}
	return h, h.Refresh(ctx)
}

// Refresh reads what other replicas have moved to this share.
func (h *Share) Refresh(ctx context.Context) error {
	var stored Bounded
	if err := h.store.Load(ctx, h.name, &stored); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.known.Merge(stored)
	return nil
}

// Left returns how many units the share has, without a request. Concurrent calls may take them.
func (h *Share) Left() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known.Share(h.replica)
}

// Take takes n units, by one request. Nil means that they are the caller's, and that this is
// stored. After any error they are not the caller's: if the share has less, the error has a
// [ShortError] and nothing was sent; if a later owner opened the share, it is an
// interlock.ErrStaleToken; else the store did not answer before ctx ended. Then the units are back
// in the share, and stored as such with its next operation; if there is none, they stay taken.
func (h *Share) Take(ctx context.Context, n int64) error {
	delta, err := h.apply(func() (Bounded, error) { return h.known.Take(h.replica, n) })
	if err != nil {
		return err
	}
	if err = h.write(ctx, delta); err != nil {
		_, _ = h.apply(func() (Bounded, error) { return h.known.Add(h.replica, n) }) // fails only beyond MaxCount
	}
	return err
}

// Move moves n units to another replica's share, by one request, with the errors of Take. If they
// were sent, they stay moved after an error: a later operation of this share stores that.
func (h *Share) Move(ctx context.Context, to string, n int64) error {
	return h.change(ctx, func() (Bounded, error) { return h.known.Move(h.replica, to, n) })
}

// Add adds n new units to the share, by one request. After an error that is no Bug they are in
// the share as well: a later operation stores that, and a second Add adds more.
func (h *Share) Add(ctx context.Context, n int64) error {
	return h.change(ctx, func() (Bounded, error) { return h.known.Add(h.replica, n) })
}

func (h *Share) change(ctx context.Context, operation func() (Bounded, error)) error {
	delta, err := h.apply(operation)
	if err != nil {
		return err
	}
	return h.write(ctx, delta)
}

func (h *Share) apply(operation func() (Bounded, error)) (Bounded, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return operation()
}

// write stores a delta under the token. It repeats what has no outcome until ctx ends.
func (h *Share) write(ctx context.Context, delta Bounded) error {
	pause := backoff.Policy{First: 20 * time.Millisecond, Max: time.Second}
	for failed := 1; ; failed++ {
		err := h.store.lattices.Merge(ctx, path(bounded, h.name), delta.l, &h.guard)
		kind := interlock.Kind(err)
		if err == nil || kind != interlock.Uncertain && kind != interlock.Retryable || !pause.Wait(ctx, failed) {
			return err
		}
	}
}
