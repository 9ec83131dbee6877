package outbox

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/observe"
)

// Relay delivers the messages of a table to a sink. It is safe for concurrent use. While slices are
// served, one goroutine looks for all of them whether there is something to send.
type Relay struct {
	db      driver.Beginner[driver.SQL]
	table   Table
	sink    Sink
	options Options

	waits   chan struct{} // receives when a service begins to wait
	mu      sync.Mutex
	serving map[*service]bool // which of them wait
	ended   func()            // ends watch, and waits for that; of the first service until the last

	checked atomic.Bool // the columns of the tables
}

// NewRelay makes a relay; it sends nothing. Its transactions come from db, at READ
// COMMITTED if db is a [driver.BeginnerAt]; each slice that is served uses one at a
// time, for a moment. Options that are impossible are a Bug, as is no db or sink.
func NewRelay[T any](db driver.Beginner[T], table Table, sink Sink, o *Options) (*Relay, error) {
	options, err := o.orDefault()
	switch {
	case err != nil:
		return nil, err
	case db == nil || sink == nil:
		return nil, failure.Bug("make relay", table.name(), "there is no database or no sink")
	}
	return &Relay{db: begins[T]{db}, table: table, sink: sink, options: options, serving: map[*service]bool{}, waits: make(chan struct{}, 1)}, nil
}

// Slices is how many slices the table has, which is how many partitions a group of
// claim/partition needs to serve all of them; [Relay.RunOf] checks it. While the number is
// being changed the error is Retryable.
func (r *Relay) Slices(ctx context.Context) (int, error) {
	l, err := r.layout(ctx)
	return l.Slices, err
}

func (r *Relay) layout(ctx context.Context) (l Layout, err error) {
	err = r.look(ctx, func(s store) error {
		if err := r.check(ctx, s); err != nil {
			return err
		}
		l, err = s.settled(ctx)
		return err
	})
	return l, err
}

// check compares the tables with those of this version, once.
func (r *Relay) check(ctx context.Context, s store) error {
	if r.checked.Load() {
		return nil
	}
	err := driver.CheckTables(ctx, s.SQL(), "outbox", Table{Name: r.table.Name})
	if err == nil {
		r.checked.Store(true)
	}
	return err
}

// Wake makes the relay look at once, if it waits. It does not block.
func (r *Relay) Wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.serving {
		s.wake()
	}
}

// Run delivers the messages of one slice, from 0, as long as c is valid and ctx
// lasts; then it lets the sink finish what is under way, within Options.Drain, and
// returns the cause of the end.
//
// Errors of the sink, and those of the database that may pass, are reported to the hooks
// and retried. It returns an [interlock.StaleTokenError] if a newer claim has
// served the slice, a [*LayoutError] if the table has no such slice or another number
// of them than its Table says, and any other Definite error of the database. It does
// not know whether anybody serves the other slices: see [Relay.RunOf].
func (r *Relay) Run(ctx context.Context, c interlock.Claim, slice int) error {
	return r.run(ctx, c, slice, 0)
}

// RunOf is [Relay.Run] of one of so many slices, and fits what claim/partition runs for a
// partition, under the partition's claim: if the layout of the group has another
// number of partitions than the table has slices, more or fewer, nothing is delivered
// and each of them returns a [*LayoutError]. With Run, slices without a partition
// would be served by no member, without an error. After [SetSlices], the group needs
// a Resize to the new number.
func (r *Relay) RunOf(ctx context.Context, c interlock.Claim, slice, slices int) error {
	if slices < 1 || slice >= slices {
		return failure.Bug("run relay", r.table.name(), "there is no slice %d of %d", slice, slices)
	}
	return r.run(ctx, c, slice, slices)
}

// run is Run; of is how many slices there have to be, if not 0.
func (r *Relay) run(ctx context.Context, c interlock.Claim, slice, of int) error {
	if slice < 0 || c == nil {
		return failure.Bug("run relay", r.table.name(), "there is no slice %d, or no claim", slice)
	}
	s := newService(r, c, slice, of)
	if f := r.options.Hooks.Serving; f != nil {
		f(observe.OutboxServing{Slice: slice, Token: c.Token(), Owner: c.Owner()})
	}
	leave := r.enter(s)
	defer leave()
	err := s.run(ctx)
	if f := r.options.Hooks.Stopped; f != nil {
		f(observe.OutboxStopped{Slice: slice, Err: err})
	}
	return err
}

// RunAll is [Relay.Run] of all slices under one claim, such as a lock's: it fits
// the function of a lock's Do. Hooks receive failures before it knows the slices as
// those of slice -1. After [SetSlices] it serves the new number of slices.
func (r *Relay) RunAll(ctx context.Context, c interlock.Claim) error {
	if c == nil {
		return failure.Bug("run relay", r.table.name(), "there is no claim")
	}
	for {
		n, err := newService(r, c, -1, 0).count(ctx)
		if err != nil {
			return err
		}
		err = r.runAll(ctx, c, n)
		var changed *LayoutError
		if !errors.As(err, &changed) || changed.Stored == n {
			return err
		}
	}
}

func (r *Relay) runAll(ctx context.Context, c interlock.Claim, n int) error {
	all, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for slice := range n {
		running.Go(func() { cancel(r.run(all, c, slice, n)) })
	}
	running.Wait()
	return context.Cause(all)
}

// enter makes s hear wakes until it leaves. The first one starts watch, and the last one ends it.
func (r *Relay) enter(s *service) (leave func()) {
	r.mu.Lock()
	r.serving[s] = false
	if len(r.serving) == 1 {
		r.ended = r.watching()
	}
	r.mu.Unlock()
	stop := func() {}
	if r.options.Notifier != nil {
		stop = r.options.Notifier.Listen(func(string) { s.wake() })
	}
	return func() {
		stop()
		r.mu.Lock()
		ended := func() {}
		if delete(r.serving, s); len(r.serving) == 0 {
			ended = r.ended
		}
		r.mu.Unlock()
		ended()
	}
}

func (r *Relay) watching() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() { r.watch(ctx) })
	return func() { cancel(); watch.Wait() }
}

// open is [Table.open] for what reads by the relay's options.
func (r *Relay) open(op string, db driver.SQL) (store, error) {
	s, err := r.table.open(op, db)
	if err != nil {
		return s, err
	}
	return s.pausing(r.options.MaxPause), nil
}

// look runs fn in a transaction that is rolled back.
func (r *Relay) look(ctx context.Context, fn func(store) error) error {
	return transact.Do(ctx, r.db.Begin, r.table.name(), func(tx driver.Tx[driver.SQL]) error {
		s, err := r.open("run relay", tx)
		if err == nil {
			err = fn(s)
		}
		return cmp.Or(err, transact.ErrNothing)
	})
}

// lasting is a context for what must come to an end after life, which c's context
// is a part of, has ended: it lasts for that much more, but no longer than c.
func lasting(life context.Context, c interlock.Claim, more time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(life))
	stop := context.AfterFunc(life, func() {
		timer := time.NewTimer(min(more, c.Remaining()))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		cancel(context.Cause(life))
	})
	return ctx, func() { stop(); cancel(nil) }
}

// A lastingClaim is one whose context lasts as long as the claim, and not only as
// long as the call that it was made for.
type lastingClaim struct {
	interlock.Claim
	ctx context.Context
}

// Context ends with the claim.
func (c lastingClaim) Context() context.Context { return c.ctx }
