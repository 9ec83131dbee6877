package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/observe"
)

// Relay delivers the messages of a table to a sink. It is safe for concurrent use. While it serves
// slices, one goroutine polls for messages of all of them.
type Relay struct {
	db      driver.Beginner[driver.SQL]
	single  driver.SQL // runs each statement in one request; nil if the database does not
	table   Table
	sink    Sink
	options Options

	announced chan struct{} // receives when there may be messages

	mu      sync.Mutex
	waits   chan struct{}     // of the present watch: receives when a service begins to wait
	serving map[*service]bool // true if the service waits
	ended   func()            // stops watch; set while there are services

	checked atomic.Bool // the columns of the tables were compared
}

// NewRelay returns a relay; it sends nothing yet. Its transactions are READ COMMITTED if db is a
// [driver.BeginnerAt]; each slice uses one short transaction at a time. Invalid options, and a nil db
// or sink, are a Bug.
func NewRelay[T any](db driver.Beginner[T], table Table, sink Sink, o *Options) (*Relay, error) {
	options, err := o.withDefaults()
	switch {
	case err != nil:
		return nil, err
	case db == nil || sink == nil:
		return nil, failure.Bug("make relay", table.name(), "a database and a sink are required")
	}
	r := &Relay{db: untyped[T]{db}, table: table, sink: sink, options: options, serving: map[*service]bool{}, announced: make(chan struct{}, 1)}
	if a, ok := db.(driver.Autocommitter); ok {
		r.single = a.Autocommit(driver.ReadCommitted)
	}
	return r, nil
}

// Slices returns the number of slices of the table: a group of claim/partition needs as many
// partitions to serve all of them, which [Relay.RunOf] checks. During a change of the number the
// error is Retryable.
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

// Wake makes a waiting relay look for messages at once. It does not block.
func (r *Relay) Wake() { hints.Signal(r.announced) }

// Run delivers the messages of one slice, counted from 0, until the claim or ctx ends. Then it lets a
// running call of the sink finish, within Options.Drain, and returns the cause of the end. Before that it
// waits up to five seconds for hooks that are to receive events.
//
// It reports errors of the sink and temporary errors of the database to the hooks, and retries. It
// returns an [interlock.StaleTokenError] if a newer claim has served the slice. It returns a
// [*LayoutError] if the table has no such slice, or another number of slices than its Table. It
// also returns any other Definite error of the database. It does not check that the other slices
// are served: see [Relay.RunOf].
func (r *Relay) Run(ctx context.Context, c interlock.Claim, slice int) error {
	return r.run(ctx, c, slice, 0)
}

// RunOf is [Relay.Run] for a partition of claim/partition, under its claim. If the group does not have
// as many partitions as the table has slices, nothing is delivered and each call returns a
// [*LayoutError]. With Run, slices without a partition would not be served, without an error. After
// [SetSlices], Resize the group to the new number.
func (r *Relay) RunOf(ctx context.Context, c interlock.Claim, slice, slices int) error {
	if slices < 1 || slice >= slices {
		return failure.Bug("run relay", r.table.name(), "no slice %d of %d", slice, slices)
	}
	return r.run(ctx, c, slice, slices)
}

// run is Run; of is the required number of slices; 0 means any.
func (r *Relay) run(ctx context.Context, c interlock.Claim, slice, of int) error {
	if slice < 0 || c == nil {
		return failure.Bug("run relay", r.table.name(), "no slice %d, or no claim", slice)
	}
	s := newService(r, c, slice, of)
	defer s.awaitReports()
	report.Add(&s.reports, nil, r.options.Hooks.Serving, observe.OutboxServing{Slice: slice, Token: c.Token(), Owner: c.Owner()})
	leave := r.enter(s)
	defer leave()
	err := s.run(ctx)
	report.Add(&s.reports, nil, r.options.Hooks.Stopped, observe.OutboxStopped{Slice: slice, Err: err})
	return err
}

// RunAll is [Relay.Run] for all slices under one claim, such as that of a lock: pass it to Do or Keep
// of a lock. Hooks receive failures as those of slice -1 before it knows the slices. After
// [SetSlices] it serves the new number of slices.
func (r *Relay) RunAll(ctx context.Context, c interlock.Claim) error {
	if c == nil {
		return failure.Bug("run relay", r.table.name(), "a claim is required")
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

// enter registers s for wakes until leave is called. The first service starts watch, the last one
// stops it.
func (r *Relay) enter(s *service) (leave func()) {
	r.mu.Lock()
	r.serving[s] = false
	if len(r.serving) == 1 {
		r.ended = r.watching()
	}
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		ended := func() {}
		if delete(r.serving, s); len(r.serving) == 0 {
			ended = r.ended
		}
		r.mu.Unlock()
		ended()
	}
}

// watching starts a watch. The one before it may not have ended. The mutex is held.
func (r *Relay) watching() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	waits := make(chan struct{}, 1)
	r.waits = waits
	stop := func() {}
	if r.options.Notifier != nil {
		stop = r.options.Notifier.Listen(func(string) { r.Wake() })
	}
	var watch sync.WaitGroup
	watch.Go(func() { r.watch(ctx, waits) })
	return func() { stop(); cancel(); watch.Wait() }
}

// look runs fn, which only reads. If the database runs single statements in one request, each of fn is
// one; otherwise they are in a transaction that is rolled back.
func (r *Relay) look(ctx context.Context, fn func(store) error) error {
	read := func(db driver.SQL) error {
		s, err := r.table.open("run relay", db)
		if err == nil {
			err = fn(s)
		}
		return err
	}
	if r.single != nil {
		return failure.Uncommitted(read(r.single))
	}
	return transact.Do(ctx, r.db.Begin, r.table.name(), func(tx driver.Tx[driver.SQL]) error {
		return cmp.Or(read(tx), transact.ErrNothing)
	})
}

// lasting returns a context for work that must finish after life has ended: it lasts by more longer
// than life, but not longer than c.
func lasting(life context.Context, c interlock.Claim, more time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(life))
	stop := context.AfterFunc(life, func() {
		backoff.Sleep(ctx, min(more, c.Remaining()))
		cancel(context.Cause(life))
	})
	return ctx, func() { stop(); cancel(nil) }
}

// A lastingClaim is a claim with another context.
type lastingClaim struct {
	interlock.Claim
	ctx context.Context
}

// Context returns the context of [lasting].
func (c lastingClaim) Context() context.Context { return c.ctx }

// maxOutages is how often in a row the relay waits for a sink that seems to be unavailable. After
// that, failures count for each message.
const maxOutages = 3

// closing bounds the last settlement, after Options.Drain, and then the wait for hooks.
const closing = 5 * time.Second

// persist retries an operation while its error is retryable and the claim is valid.
func (s *service) persist(ctx context.Context, op string, do func() error) error {
	pause := backoff.Policy{First: 20 * time.Millisecond, Max: 5 * time.Second}
	for failed := 1; ; failed++ {
		err := do()
		kind := interlock.Kind(err)
		if err == nil || kind == interlock.Definite || kind == interlock.Bug || ctx.Err() != nil || !s.claim.Valid() {
			return err
		}
		report.Add(&s.reports, nil, s.options.Hooks.Trouble, observe.OutboxTrouble{Slice: s.slice, Op: op, Err: err})
		if !backoff.Sleep(ctx, pause.Delay(failed, s.options.random())) {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// waitForSink waits for a sink that seems to be unavailable.
func (s *service) waitForSink(life context.Context, first error) error {
	s.outages++
	d := min(s.judge.retry.Delay(s.outages, s.options.random()), time.Second)
	report.Add(&s.reports, nil, s.options.Hooks.Paused, observe.OutboxPaused{Slice: s.slice, For: d, Err: first})
	backoff.Sleep(life, d)
	return nil
}

// rest is the number of MaxPoll after which a waiting service looks without a wake, for what watch
// cannot see.
const rest = 60

// lull returns how long an idle service waits unless it is woken: until next, when a lane is due, if
// that is known. If next has passed, the clock of the database is behind, and the wait doubles.
func (o Options) lull(next, now time.Time) time.Duration {
	most := min(o.MaxPoll, math.MaxInt64/rest) * rest
	switch until := next.Sub(now); {
	case next.IsZero():
		return most
	case until > 0:
		return min(until+time.Millisecond, most)
	default:
		return min(max(-until, o.MinPoll), most)
	}
}

// pause sleeps until d has passed or a wake arrives.
func (s *service) pause(ctx context.Context, d time.Duration) bool {
	defer s.wait(s)()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.awake:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
