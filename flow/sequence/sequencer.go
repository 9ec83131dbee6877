package sequence

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Handler takes an event. in is what the store lends, such as the transaction that
// moves the key. An error leaves the event undelivered: one that was just offered
// goes back to its source, one that was held is tried again with growing waits,
// and the key with it. So is one that panics over a held event, as if it had returned
// a [*PanicError]; a panic over an event just offered is its caller's.
type Handler[T any] func(ctx context.Context, in T, d Delivery) error

// Sequencer puts the events of one stream in order, each key for itself. It is safe
// for concurrent use, and must be closed.
type Sequencer[T any] struct {
	stream  string
	store   Store[T]
	handler Handler[T]
	options Options
	rules   rules
	now     func() time.Time
	backend *backend.Backend // nil if the store is the caller's

	ctx     context.Context // of what is done without a caller
	cancel  context.CancelCauseFunc
	work    sync.WaitGroup // goroutines, and callers of Offer and Resume
	wake    chan struct{}  // capacity 1: the first due time may have changed
	turns   chan struct{}  // capacity Concurrency: of keys worked on without a caller
	fetches chan struct{}  // the same, of fetches

	mu     sync.Mutex
	closed bool
	keys   map[string]*entry
	idle   idle // entries that nothing is remembered of but the position
	due    agenda
	bytes  int64 // held
	gaps   int   // keys that hold something
}

// New makes a sequencer of stream, 1 to 255 bytes: its name in the store. Several
// streams may share a store. Several processes may serve one stream, best each its
// own keys: a key that another process moves is noticed before anything is
// delivered twice, but what one of them holds the other does not know of.
func New[T any](stream string, store Store[T], handler Handler[T], o *Options) (*Sequencer[T], error) {
	const op = "make sequencer"
	if err := named(op, "stream", stream, maxStream); err != nil {
		return nil, err
	}
	if store == nil || handler == nil {
		return nil, failure.Bug(op, stream, "it needs a store and a handler")
	}
	options, err := o.with()
	if err != nil {
		return nil, err
	}
	s := &Sequencer[T]{stream: stream, store: store, handler: handler, options: options, now: time.Now,
		rules: options.rules(rand.Float64), keys: map[string]*entry{},
		wake: make(chan struct{}, 1), turns: make(chan struct{}, options.Concurrency), fetches: make(chan struct{}, options.Concurrency)}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.work.Go(s.tend)
	return s, nil
}

// Offer brings an event. It returns once that is delivered, dropped or held, and
// delivers what was held for want of it. The outcome says whether the event may be
// acknowledged; a Refused one comes with the error:
//
//   - a [*FullError]: it would have to be held, and there is no room;
//   - a [*HaltedError]: the key stands still;
//   - interlock.ErrName, or another Bug: it is no event;
//   - interlock.ErrClosed, or why ctx ended;
//   - the handler's or the store's: it is not known to be delivered.
//
// After any of them but the Bugs the same event is to be offered again, with any
// outcome before; it converges. Events of one key wait for each other, in no certain order.
func (s *Sequencer[T]) Offer(ctx context.Context, e Event) (Outcome, error) {
	if err := s.check(e); err != nil {
		return Refused, err
	}
	k, err := s.enter(ctx, opOffer, e.Key)
	if err != nil {
		return Refused, err
	}
	defer s.leave(k)
	return s.offer(ctx, k, e, false)
}

const opOffer = "offer event"

// check reports why an event is none, as a Bug.
func (s *Sequencer[T]) check(e Event) error {
	if err := both(opOffer, s.stream, e.Key); err != nil {
		return err
	}
	if e.Epoch < 0 || e.Seq < 1 {
		return failure.Bug(opOffer, e.Key, "%v is no position: epochs are at least 0, seqs at least 1", e.Position)
	}
	return nil
}

// Resume lets a halted key go on without what is missing: it records the hole and
// delivers what is held behind it. If the key is not halted, what failed for it is
// tried again at once. It returns the first error of that, if any.
func (s *Sequencer[T]) Resume(ctx context.Context, key string) error {
	const op = "resume key"
	if err := both(op, s.stream, key); err != nil {
		return err
	}
	k, err := s.enter(ctx, op, key)
	if err != nil {
		return err
	}
	defer s.leave(k)
	return s.step(ctx, k, input{kind: resume}).failed
}

// Close takes no more events, ends the contexts of what is done without a caller,
// and waits until that and all calls have returned, or ctx ends. What is held is
// forgotten, and Settled not told: the source has it still.
func (s *Sequencer[T]) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(interlock.ErrClosed)
	end := make(chan struct{})
	go func() { // ends with the work, which ends with its contexts
		s.work.Wait()
		close(end)
	}()
	select {
	case <-end:
		return s.backend.Close(ctx)
	case <-ctx.Done():
		return errors.Join(&interlock.Error{Op: "close sequencer", Name: s.stream, Kind: interlock.Definite, Err: context.Cause(ctx)}, s.backend.Close(ctx))
	}
}

// Load is what a sequencer holds at one moment.
type Load struct {
	Keys  int   // that hold events
	Bytes int64 // of keys and payloads
}

// Load shows how much is held.
func (s *Sequencer[T]) Load() Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Load{Keys: s.gaps, Bytes: s.bytes}
}
