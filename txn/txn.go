// Package txn runs sagas, TCC and two-phase commit in a process: a journal, its coordinator, this
// process's share of the journal's shards, retention and reconciliation. It does not isolate
// transactions from each other, and calls participants at least once: they need a barrier
// (package txn/barrier).
//
//	rt, err := txn.Open(ctx, "postgres://127.0.0.1/shop", nil)
//	...
//	defer rt.Close(ctx)
//	engine, err := saga.New(rt.Coordinator(), nil, book) // and tcc.New, twopc.New
//	...
//	err = rt.Start(ctx)
//	...
//	outcome, err := book.Do(ctx, engine, "booking/42", order)
package txn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// DefaultGroup is the name under which processes share the shards of the default journal.
const DefaultGroup = "interlock.coordinators"

// closeTimeout bounds how long Close waits for work under way.
const closeTimeout = 10 * time.Second

// healthTimeout bounds [Runtime.Health].
const healthTimeout = 2 * time.Second

// LockOptions are the options of locks on a backend; see [backend.LockOptions].
type LockOptions = backend.LockOptions

// Options of a runtime; nil and the zero value work.
type Options struct {
	// Journal is the name of the journal; empty means [journal.DefaultName]. [New] does not use
	// it.
	Journal string
	// Shards is the number of shards of the journal; 0 means the journal's own, or 64 if it
	// is new.
	Shards int
	// Group names the processes that share the shards of one journal. Empty means [DefaultGroup]
	// for the default journal, and DefaultGroup.NAME for another one. Processes of different
	// journals must not have the same group: each would serve only some shards of its journal.
	Group string
	// Locks are the options of the locks. [New] does not use them.
	Locks LockOptions
	// Coordinator has the bounds, the retention, the reconciliation and the hooks of the
	// coordinator. Without a Notifier in it, [Open] and [On] use that of the backend, if it has one.
	// The Log of its hooks also receives what the runtime and its locks log.
	Coordinator *coordinator.Options
	// Failed is called when the process cannot serve its shards, before a retry. nil logs
	// warnings, up to 20 in a second.
	Failed func(error)
}

// log returns the log of the coordinator's hooks; nil means slog.Default.
func (o Options) log() *slog.Logger {
	if o.Coordinator == nil || o.Coordinator.Hooks == nil {
		return nil
	}
	return o.Coordinator.Hooks.Log
}

// unserved is the event that is logged without Options.Failed.
type unserved struct{ Err error }

// A Runtime is a coordinator and this process's share of the journal's shards. It is safe
// for concurrent use.
type Runtime struct {
	options     Options
	coordinator *coordinator.Coordinator
	journal     *journal.Journal
	locks       driver.Fenced
	values      driver.Values    // nil means that one process has all shards, and the others wait for its lock
	backend     *backend.Backend // nil if the store and the locks are the caller's

	ctx    context.Context // ends with Close
	stop   context.CancelCauseFunc
	beside sync.WaitGroup // Start and the work of Go; nothing is added after stop

	mu       sync.Mutex
	starting bool                        // Start was called, and has not failed
	leave    func(context.Context) error // nil until Start has returned, and after Close

	closing  sync.Once
	closeErr error
}

// Open connects to the backend of a URL, which has both the journal and the locks, and creates
// missing tables of the journal. The program must import the driver of the URL's scheme (see
// lock.Open). Nothing runs before [Runtime.Start]. ctx bounds the opening only.
func Open(ctx context.Context, url string, o *Options) (*Runtime, error) {
	u, err := backend.Parse(url)
	if err == nil {
		err = journal.CheckURL(u)
	}
	if err != nil {
		return nil, err
	}
	b, err := u.Open(ctx)
	if err != nil {
		return nil, err
	}
	r, err := On(ctx, b, o)
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // the first error says more
		return nil, err
	}
	r.backend = b
	return r, nil
}

// On is [Open] on a backend that the caller has opened and closes after the runtime.
func On(ctx context.Context, b *backend.Backend, o *Options) (*Runtime, error) {
	if o == nil {
		o = &Options{}
	}
	store, err := journal.OpenStore(ctx, b, o.Journal)
	if err != nil {
		return nil, err
	}
	locks, err := b.Fenced(ctx, o.Locks)
	if err != nil {
		return nil, err
	}
	values, err := b.ValuesIfAny(ctx, o.Locks.Prefix)
	if err != nil {
		return nil, err
	}
	with, err := o.withNotifier(ctx, b)
	if err != nil {
		return nil, err
	}
	if with.Group == "" && o.Journal != "" && o.Journal != journal.DefaultName {
		with.Group = DefaultGroup + "." + o.Journal
	}
	return New(ctx, store, locks, values, with)
}

// withNotifier adds the notifier of the backend, if it has one and there is none.
func (o Options) withNotifier(ctx context.Context, b *backend.Backend) (*Options, error) {
	var c coordinator.Options
	if o.Coordinator != nil {
		c = *o.Coordinator
	}
	if c.Notifier == nil {
		notifier, err := b.Notifier(ctx, cmp.Or(o.Journal, journal.DefaultName))
		if err != nil {
			return nil, err
		}
		c.Notifier = notifier
	}
	o.Coordinator = &c
	return &o, nil
}

// New returns a runtime on a store, locks and values that the caller has opened and closes after
// the runtime. values belong to the same service as the locks. If values is nil, one process
// serves all shards and the others wait for its lock.
func New(ctx context.Context, store driver.Journal, locks driver.Fenced, values driver.Values, o *Options) (*Runtime, error) {
	r := &Runtime{locks: locks, values: values}
	r.ctx, r.stop = context.WithCancelCause(context.Background())
	r.options = *cmp.Or(o, &Options{})
	r.options.Group = cmp.Or(r.options.Group, DefaultGroup)
	if r.options.Failed == nil {
		var log func(unserved)
		observe.OnNil(&log, r.options.log(), slog.LevelWarn, func(unserved) string { return "transactions are not served here for now" })
		r.options.Failed = func(err error) { coordinator.Emit(log, unserved{err}) }
	}
	shards, err := r.options.Shards, error(nil)
	if shards == 0 {
		if shards, err = store.Shards(ctx, 0, 0); err != nil {
			return nil, err
		}
	}
	if r.journal, err = journal.New(store, &journal.Options{Shards: max(shards, 0)}); err != nil { // below 0 while it is changed
		return nil, err
	}
	if err = r.journal.CheckShards(ctx); err == nil {
		r.coordinator, err = coordinator.New(r.journal, r.options.Coordinator)
	}
	if err != nil {
		return nil, errors.Join(err, r.journal.Close())
	}
	return r, nil
}

// Coordinator returns the coordinator on which engines are created before [Runtime.Start].
func (r *Runtime) Coordinator() *coordinator.Coordinator { return r.coordinator }

// Start serves this process's share of the shards until [Runtime.Close]. It returns once the
// process takes part. From then on the transactions of its shards are driven, first those that
// another process left. ctx bounds the start only.
func (r *Runtime) Start(ctx context.Context) error {
	if err := r.begin(); err != nil {
		return &interlock.Error{Op: "start runtime", Kind: interlock.Bug, Err: err}
	}
	defer r.beside.Done()
	ctx, release := join.Context(ctx, r.ctx)
	defer release()
	enter := r.join
	if r.values == nil {
		enter = r.alone
	}
	leave, err := enter(ctx)
	r.mu.Lock()
	r.starting = err == nil
	closed := context.Cause(r.ctx)
	if err == nil && closed == nil {
		r.leave = leave
		for _, work := range r.coordinator.Beside() {
			r.run(work)
		}
	}
	r.mu.Unlock()
	if err == nil && closed != nil {
		ending, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		err = errors.Join(closed, leave(ending))
	}
	return err
}

// begin marks the runtime as starting.
func (r *Runtime) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.starting || r.ctx.Err() != nil {
		return cmp.Or(context.Cause(r.ctx), errors.New("it is already started"))
	}
	r.starting = true
	r.beside.Add(1)
	return nil
}

// Health returns nil if this process takes part and the journal answers within 2 s. Use it for a
// readiness check. It does not report transactions that wait for an operator; list those by their
// operators.
func (r *Runtime) Health(ctx context.Context) error {
	r.mu.Lock()
	started := r.leave != nil
	r.mu.Unlock()
	if !started {
		return &interlock.Error{Op: "check runtime", Kind: interlock.Retryable, Err: errors.New("it does not serve: it was not started, or is closed")}
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	_, err := r.journal.Heads(ctx, "", 1)
	return err
}

// join shares the shards with the other processes. The number of shards is part of the group's name: after
// [journal.SetShards] there is another group, and the journal refuses the processes of the former one.
func (r *Runtime) join(ctx context.Context) (leave func(context.Context) error, err error) {
	shards := r.journal.Shards()
	g, err := partition.Join(ctx, r.locks, r.values, fmt.Sprintf("%s.%d", r.options.Group, shards), partition.Layout{Partitions: shards}, &partition.Options{
		Work: func(ctx context.Context, p partition.Partition) error {
			return r.coordinator.Serve(ctx, p.Claim, p.Index)
		},
		Hooks: &observe.Partition{Log: r.options.log(), Failed: func(e observe.PartitionFailed) { r.options.Failed(e.Err) }},
	})
	if err != nil {
		return nil, err
	}
	return g.Leave, nil
}

// alone serves all shards under one lock, or waits for it.
func (r *Runtime) alone(context.Context) (leave func(context.Context) error, err error) {
	locks, err := lock.NewFenced(r.locks, &lock.Options{Hooks: &observe.Lock{Log: r.options.log(), Restarting: func(e observe.LockRestarting) { r.options.Failed(e.Err) }}})
	if err != nil {
		return nil, err
	}
	work := locks.Start(r.options.Group, r.coordinator.Run)
	return func(ctx context.Context) error {
		return errors.Join(work.Close(ctx), locks.Close(ctx))
	}, nil
}

// pauses is the backoff between two runs of [Runtime.Go].
var pauses = backoff.Policy{First: 200 * time.Millisecond, Max: 30 * time.Second}

// Go runs work in the background until [Runtime.Close]. If work returns before, panics or ends its
// goroutine, Go reports that to Options.Failed, and runs it again after a pause. Pauses grow to 30 s,
// and are short again after a run that was longer.
func (r *Runtime) Go(work func(ctx context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() == nil {
		r.run(work)
	}
}

// run is Go. The caller holds the lock.
func (r *Runtime) run(work func(ctx context.Context) error) {
	r.beside.Go(func() {
		for failed := 1; r.ctx.Err() == nil; failed++ {
			began := time.Now()
			err := coordinator.Contain(r.ctx, "run in the background", "", work)
			if r.ctx.Err() != nil {
				return
			}
			if time.Since(began) > pauses.Max {
				failed = 1
			}
			r.options.Failed(err)
			pauses.Wait(r.ctx, failed)
		}
	})
}

// Close stops driving transactions, waits up to 10 s for calls under way, hands the shards to
// other processes and, after [Open], disconnects. The next owner repeats calls that have not
// returned by then, under the same key. Close ignores the cancellation of ctx. Later calls return
// the result of the first one.
func (r *Runtime) Close(ctx context.Context) error {
	r.closing.Do(func() { r.closeErr = r.close(context.WithoutCancel(ctx)) })
	return r.closeErr
}

func (r *Runtime) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	r.mu.Lock()
	leave := r.leave
	r.leave = nil
	r.stop(interlock.ErrClosed)
	r.mu.Unlock()
	var err error
	if leave != nil {
		err = leave(ctx)
	}
	ended := make(chan struct{})
	go func() { r.beside.Wait(); close(ended) }() // ends with the work of Go
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return errors.Join(err, r.journal.Close(), r.backend.Close(ctx))
}
