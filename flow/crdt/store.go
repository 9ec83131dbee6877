package crdt

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// A Store keeps values by name; each type has its own names. It does not retry, and is safe for
// concurrent use.
type Store struct{ lattices driver.Lattices }

// NewStore returns a store in redis.NewLattices or memory.NewLattices.
func NewStore(in driver.Lattices) *Store { return &Store{in} }

// path returns the name in the lattices; its format never changes.
func path(k kind, name string) string { return k.String() + "/" + name }

// Merge joins a delta, or a whole value, into the value of a name, in one request. After an Uncertain
// error the call can be repeated. An empty or too long name is a Bug.
func (s *Store) Merge(ctx context.Context, name string, delta Type) error {
	if name == "" {
		return bug("merge", name, interlock.ErrName)
	}
	return s.lattices.Merge(ctx, path(delta.kind(), name), *delta.state(), nil)
}

// Load replaces value by the stored one, or by the zero value if there is none. If the stored value is
// invalid, the error is Definite.
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

// escape makes the last slash of a resource the one before the replica.
var escape = strings.NewReplacer("%", "%25", "/", "%2F")

// A Share is one replica's part of a [Bounded] counter in a store. Its methods store an operation
// under the replica's token before they return, and are safe for concurrent use.
type Share struct {
	store         *Store
	name, replica string
	guard         driver.Raise

	mu    sync.Mutex
	known Bounded
}

// Share opens a replica's share of a counter, under the token of the claim for the replica. From then on
// the store rejects writers of this share with lower tokens. To recover the units of a dead region,
// acquire its claim, open its share in the store that it used, and Move them.
//
// Each replica writes to one store. Other stores may have copies of its operations, by Merge of whole
// values; never open the share there. On a Redis Cluster the name needs a {tag}.
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
	h.guard = driver.Raise{Resource: path(bounded, name) + "/" + escape.Replace(replica), Token: token, Source: replica}
	if err := h.write(ctx, Bounded{}); err != nil {
		return nil, err
	}
	return h, h.Refresh(ctx)
}

// Refresh reads units that other replicas have moved to this share.
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

// Left returns the units of the share, without a request. Concurrent calls may take them.
func (h *Share) Left() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known.Share(h.replica)
}

// Take takes n units, in one request, and stores that. After any error the caller does not have the units:
//   - a [ShortError]: the share has fewer units; nothing was sent
//   - an interlock.ErrStaleToken: a later owner has opened the share
//   - otherwise the store did not answer before ctx ended. The units are back in the share, and its next
//     operation stores that; without one they remain taken.
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

// Move moves n units to another replica's share, in one request, with the errors of Take. If the request
// was sent, the units remain moved even after an error: a later operation of this share stores that.
func (h *Share) Move(ctx context.Context, to string, n int64) error {
	return h.change(ctx, func() (Bounded, error) { return h.known.Move(h.replica, to, n) })
}

// Add adds n new units to the share, in one request. After an error other than a Bug they are in the share
// as well: a later operation stores that, and a second Add adds more.
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

// write stores a delta under the token. It retries Uncertain and Retryable errors until ctx ends.
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
