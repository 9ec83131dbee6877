package sequence

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/flow/keyed"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Handler handles an event. in comes from the store, such as the transaction that moves the key. After
// an error the event is not delivered: Offer returns the error for the offered event; a held event is
// retried with growing pauses, and its key waits. A panic for a held event counts as a [*PanicError]; a
// panic for the offered event reaches the caller of Offer.
type Handler[T any] func(ctx context.Context, in T, d Delivery) error

// Sequencer delivers the events of one stream in order for each key. It is safe for concurrent use, and
// must be closed.
type Sequencer[T any] struct {
	stream  string
	store   Store[T]
	handler Handler[T]
	options Options
	rules   rules
	now     func() time.Time
	backend *backend.Backend // nil if the store is the caller's

	ctx     context.Context // of work without a caller
	cancel  context.CancelCauseFunc
	work    sync.WaitGroup // goroutines, and callers of Offer and Resume
	wake    chan struct{}  // capacity 1: the first due time may have changed
	turns   chan struct{}  // capacity Concurrency: keys worked on without a caller
	fetches chan struct{}  // capacity Concurrency: running fetches

	mu     sync.Mutex
	closed bool
	keys   map[string]*entry
	idle   idle // entries that hold nothing
	due    agenda
	bytes  int64 // held
	gaps   int   // keys that hold events
}

// New returns a sequencer of a stream, whose name in the store has 1 to 255 bytes. Several streams may
// share a store. Several processes may serve one stream, preferably different keys. A move of a key by
// another process is detected before an event is delivered twice, but held events are not shared.
func New[T any](stream string, store Store[T], handler Handler[T], o *Options) (*Sequencer[T], error) {
	const op = "make sequencer"
	if err := checkStream(op, stream); err != nil {
		return nil, err
	}
	if store == nil || handler == nil {
		return nil, failure.Bug(op, stream, "a store and a handler are required")
	}
	options, err := o.withDefaults()
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

// Offer passes an event to the sequencer. It returns when the event is delivered, dropped or held, and
// delivers held events that waited for it. The outcome says whether the event may be acknowledged. With
// Refused, the error is one of these:
//
//   - a [*FullError]: it must be held, and there is no room
//   - a [*HaltedError]: the key is halted
//   - interlock.ErrName, or another Bug: the event is invalid
//   - interlock.ErrClosed, or the cause of the end of ctx
//   - an error of the handler or the store: the event may be delivered
//
// After any of them but a Bug, offer the same event again, which is always safe. Calls for one key wait
// for each other, in no particular order.
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

// check returns a Bug if an event is invalid.
func (s *Sequencer[T]) check(e Event) error {
	if err := checkNames(opOffer, s.stream, e.Key); err != nil {
		return err
	}
	if e.Epoch < 0 || e.Seq < 1 {
		return failure.Bug(opOffer, e.Key, "invalid position %v: the epoch is at least 0, the seq at least 1", e.Position)
	}
	return nil
}

// Resume continues a halted key without the missing events: it records the hole and delivers the held
// events after it. If the key is not halted, it retries failed work at once. It returns the first
// error.
func (s *Sequencer[T]) Resume(ctx context.Context, key string) error {
	const op = "resume key"
	if err := checkNames(op, s.stream, key); err != nil {
		return err
	}
	k, err := s.enter(ctx, op, key)
	if err != nil {
		return err
	}
	defer s.leave(k)
	return s.step(ctx, k, input{kind: resume}).failed
}

// Close rejects new events, cancels work without a caller, and waits until that and all calls have
// returned, or ctx ends. Held events are dropped without a call of Settled: the source still has them.
func (s *Sequencer[T]) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(interlock.ErrClosed)
	end := make(chan struct{})
	go func() { // ends when all work has
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

// Load is the number of held keys and bytes at one moment.
type Load struct {
	Keys  int   // that hold events
	Bytes int64 // of keys and payloads
}

// Load returns the present load.
func (s *Sequencer[T]) Load() Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Load{Keys: s.gaps, Bytes: s.bytes}
}

// Open is [New] with a [Table] in the database of a URL, such as postgres://127.0.0.1/shop, where the
// effects of the handler are as well. It creates the tables unless they exist. The program must import
// the driver of the URL's scheme (see lock.Open). ctx bounds the call only. [Sequencer.Close]
// disconnects.
func Open(ctx context.Context, url, stream string, t Table, handler Handler[interlock.SQL], o *Options) (*Sequencer[interlock.SQL], error) {
	b, db, err := backend.OpenSQL(ctx, url, t)
	if err != nil {
		return nil, err
	}
	s, err := New(stream, InTx(db, t), handler, o)
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // the first error says more
		return nil, err
	}
	s.backend = b
	return s, nil
}

// A PanicError is the panic of a handler for a held event, or of a Fetch. Effects outside of the store
// are unknown: it is Uncertain.
type PanicError = keyed.PanicError

// contain returns a panic of the function that defers it as an error.
func contain(key string, err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Key: key, Value: v, Stack: debug.Stack()}
	}
}
