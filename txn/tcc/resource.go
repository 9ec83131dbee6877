package tcc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// A Resource is a participant. Q is a request and H the hold that it returns; both are JSON in the
// journal. [branch.From] has the call: its transaction and branch name the hold. Each method is
// called at least once, perhaps concurrently or late. A row for each branch, or txn/barrier, meets
// these obligations:
//
//   - a repeated call has one effect and one answer
//   - a Try that arrives after a Cancel of its branch fails, also if there was nothing to cancel
//   - a Try changes only what is available to others
//
// Errors are marked with branch.Fail, branch.Retry, branch.Unknown or branch.InProgress.
// A panic counts as Unknown. Methods return when their context ends.
type Resource[Q, H any] interface {
	// Try holds what q requests. It refuses with branch.Fail. The hold does not end by itself
	// at the time until: afterwards the resource asks [Engine.Decide] for the outcome.
	Try(ctx context.Context, q Q, until time.Time) (H, error)
	// Confirm makes the hold final. It must not refuse.
	Confirm(ctx context.Context, q Q, h H) error
	// Cancel releases the hold; h is nil if it is unknown whether there is one. It must not
	// refuse.
	Cancel(ctx context.Context, q Q, h *H) error
}

// A Definition is a resource with its name in the journal.
type Definition[Q, H any] struct{ of handle }

// Defined is a [Definition] of any types.
type Defined interface{ handle() handle }

// handle is a resource without its types. Requests and holds are JSON.
type handle struct {
	name    string
	target  func(request json.RawMessage) string // nil returns the name
	try     func(ctx context.Context, request json.RawMessage, until time.Time) (json.RawMessage, error)
	confirm func(ctx context.Context, request, hold json.RawMessage) error
	cancel  func(ctx context.Context, request, hold json.RawMessage) error
	watch   func(ctx context.Context, ask Ask) error // nil if the participant asks by itself
}

// Define names a resource; the name has 1 to 255 bytes and is unique in its engine. Do not rename
// it while transactions that have tried it may be unfinished.
func Define[Q, H any](name string, r Resource[Q, H]) Definition[Q, H] {
	d := Definition[Q, H]{handle{name: name}}
	if r == nil {
		return d
	}
	if w, ok := r.(interface {
		watch(ctx context.Context, ask Ask) error
	}); ok {
		d.of.watch = w.watch
	}
	d.of.try = func(ctx context.Context, request json.RawMessage, until time.Time) (json.RawMessage, error) {
		var q Q
		if err := json.Unmarshal(request, &q); err != nil {
			return nil, branch.Retry(fmt.Errorf("read the request of resource %q: %w", name, err))
		}
		h, err := r.Try(ctx, q, until)
		if err != nil {
			return nil, err
		}
		return stored(name, h)
	}
	d.of.confirm = func(ctx context.Context, request, hold json.RawMessage) error {
		q, h, err := load[Q, H](name, request, hold)
		if err != nil {
			return err
		}
		return r.Confirm(ctx, q, *h)
	}
	d.of.cancel = func(ctx context.Context, request, hold json.RawMessage) error {
		q, h, err := load[Q, H](name, request, hold)
		if err != nil {
			return err
		}
		return r.Cancel(ctx, q, h)
	}
	return d
}

// stored returns a hold as JSON. A hold that cannot be encoded is unknown.
func stored(name string, hold any) (json.RawMessage, error) {
	text, err := coordinator.Marshal(hold)
	if err == nil {
		err = fits(text)
	}
	if err != nil {
		return nil, branch.Unknown(fmt.Errorf("store the hold of resource %q: %w", name, err))
	}
	return text, nil
}

// fits checks whether a record can have a request or a hold: its size, and how deeply it is nested,
// which encoding/json bounds when it reads a record.
func fits(text []byte) error {
	const most, deep = driver.MaxPayload - around, 10_000
	switch {
	case len(text) > most:
		return fmt.Errorf("it has %d bytes, at most %d are allowed", len(text), most)
	case len(text) >= deep && !json.Valid(slices.Concat([]byte("["), text, []byte("]"))):
		return errors.New("it is nested too deeply")
	}
	return nil
}

// fitsWith checks that a hold fits into the record of its request: a Run has both in one record.
func fitsWith(request, hold []byte) error {
	if len(request)+len(hold) > driver.MaxPayload-around {
		return branch.Unknown(fmt.Errorf("store the hold: it has %d bytes and its request %d, together at most %d are allowed: use Submit", len(hold), len(request), driver.MaxPayload-around))
	}
	return nil
}

// around bounds the bytes of a record besides its request and hold.
const around = 4 << 10

// load decodes a request and a hold of the journal; an absent hold is nil.
func load[Q, H any](name string, request, hold json.RawMessage) (q Q, h *H, err error) {
	if err = json.Unmarshal(request, &q); err == nil && hold != nil {
		h = new(H)
		err = json.Unmarshal(hold, h)
	}
	if err != nil {
		err = branch.Retry(fmt.Errorf("read the request and the hold of resource %q: %w", name, err))
	}
	return q, h, err
}

func (d Definition[Q, H]) handle() handle { return d.of }

// Target sets a function that chooses the target of a request, such as a host, for the limits of
// the coordinator. The default, also if the function panics, is the resource's name. The function
// must be deterministic and must not block.
func (d Definition[Q, H]) Target(of func(q Q) string) Definition[Q, H] {
	name := d.of.name
	d.of.target = func(request json.RawMessage) (target string) {
		defer func() { // of the coordinator's goroutine
			if recover() != nil {
				target = name
			}
		}()
		var q Q
		if err := json.Unmarshal(request, &q); err != nil {
			return name
		}
		return of(q)
	}
	return d
}

// Try returns a branch that requests q from the resource. Its name is the resource's, unless
// [Try.As] sets another.
func (d Definition[Q, H]) Try(q Q) Try[Q, H] { return Try[Q, H]{of: d.of, name: d.of.name, q: q} }

// Branch is a [Try] of any types.
type Branch interface{ try() (try, error) }

// A Try is a branch of a transaction that is to be run. It is a value.
type Try[Q, H any] struct {
	of   handle
	name string
	q    Q
}

// As names the branch, with 1 to 255 bytes. The branches of a transaction have
// different names.
func (t Try[Q, H]) As(name string) Try[Q, H] { t.name = name; return t }

// OutputOf returns the hold of the branch, also after it has ended. If it is unknown, the error is an
// [ErrNoOutput].
func (t Try[Q, H]) OutputOf(o Outcome) (h H, err error) {
	text, ok := o.holds[t.name]
	if !ok {
		return h, fmt.Errorf("read the hold of branch %q: %w", t.name, ErrNoOutput)
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return h, fmt.Errorf("read the hold of branch %q: %w", t.name, err)
	}
	return h, nil
}

// try is a branch without its types, and the outcome of its try.
type try struct {
	branch, resource string
	request, hold    json.RawMessage
	refused          bool
	cause            error // why it has no hold, or an unknown one
}

func (t Try[Q, H]) try() (try, error) {
	text, err := json.Marshal(t.q)
	if err == nil {
		err = fits(text)
	}
	if err != nil {
		return try{}, fmt.Errorf("write the request of branch %q: %w", t.name, err)
	}
	return try{branch: t.name, resource: t.of.name, request: text}, nil
}
