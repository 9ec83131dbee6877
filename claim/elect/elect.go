// Package elect elects one leader among many processes. It cannot promise that only one process
// leads: a leader that was paused continues after its successor has begun. Each term has a
// token, and a guard (package guard/fence) that rejects lower tokens protects the data.
//
//	elections, err := elect.Open(ctx, "etcd://127.0.0.1:2379", nil) // with import _ ".../driver/etcd"
//	...
//	err = elections.Run(ctx, "billing", func(ctx context.Context, term *elect.Term) error {
//		return fence.Tx(ctx, db, marks, term, "invoices", writeInvoices)
//	})
//
// Run releases a leadership only after its function has returned. A function that ignores
// the end of its context keeps the leadership until it returns or the lease expires.
//
// A candidate queues for the lock of the election's name, as in claim/lock. So an election
// and a lock of the same name exclude each other, and tools that show locks show both. With
// Options.Values the leader also stores data under its token: proclaimed data, a nominee, and
// data for its successors (Term.Save). Either all candidates of an
// election have Values, or none.
package elect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/process"
	"github.com/interlock-dev/interlock/observe"
)

// Required are the faults that the driver must survive unless Options.Accept names them. They
// are the faults of the ordinary operation of a replicated system. After such a fault tokens
// must not decrease, and during it two leaders must not coexist.
//
// A claim that ends with its connection (interlock.Connection) exists on one server and on none
// of its replicas. A crash or a failover ends the connection and the claim together, so the
// holder notices. The next server issues tokens only for sessions that it opened itself. Such a
// driver must therefore only keep tokens across crashes and partitions, and exclusion across
// partitions.
const Required = interlock.ServerCrash | interlock.Partition | interlock.AsyncFailover

// MaxName is the maximum length of an election's name, in bytes. The rest of driver.MaxName is
// reserved for the names of its values.
const MaxName = driver.MaxName - 48

const maxIdentity = 200

// retries is the delay between requests that failed; attempts is the maximum number of
// consecutive failures.
var retries = backoff.Policy{First: 100 * time.Millisecond, Max: 2 * time.Second}

const attempts = 6

// Options configure elections; nil and the zero value are valid.
type Options struct {
	// Identity identifies this candidate to observers and in hand-overs. At most 200 bytes;
	// candidates should have different ones. Empty means host name and process id.
	Identity string
	// Values stores a leader's data, nominee and saved data. If it is nil, the methods of
	// Term that need it return an error.
	Values driver.Values
	// Accept lists the faults among [Required] that the driver need not survive. Redis
	// replicates asynchronously, so it needs interlock.AsyncFailover here, and also
	// interlock.ServerCrash if it does not write every command to disk. After an accepted fault
	// two leaders may coexist.
	Accept interlock.Faults
	// InProcess accepts a driver without guarantees between processes, such as driver/memory.
	// It is for tests and single-process programs.
	InProcess bool
	// StandBack is the maximum time for which an elected candidate yields to a nominated one. 0
	// means TTL, or the driver's TTL, or 30 s if the driver has none.
	StandBack time.Duration
	// TTL is the lease duration of a leadership without renewal, as in lock.Options; 0 means
	// the driver's TTL.
	TTL time.Duration
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *Hooks
}

func (o *Options) resolve(g interlock.Guarantees) (Options, error) {
	r := *cmp.Or(o, &Options{})
	if r.Identity == "" {
		r.Identity = process.Name()
	}
	r.StandBack = cmp.Or(r.StandBack, r.TTL, g.TTL, 30*time.Second)
	r.Hooks = cmp.Or(r.Hooks, &Hooks{})
	return r, r.validate()
}

func (o Options) validate() error {
	switch {
	case len(o.Identity) > maxIdentity:
		return fmt.Errorf("Identity has %d bytes, at most %d are allowed", len(o.Identity), maxIdentity)
	case o.StandBack < 0:
		return errors.New("StandBack must not be negative")
	case !Required.Has(o.Accept):
		return fmt.Errorf("the option Accept names guarantees that are not required: %v", o.Accept&^Required)
	}
	return nil
}

func (o Options) requirements(l interlock.Liveness) interlock.Requirements {
	if o.InProcess {
		return interlock.Requirements{}
	}
	tokens, exclusion := Required, Required
	if l == interlock.Connection {
		tokens, exclusion = interlock.ServerCrash|interlock.Partition, interlock.Partition
	}
	return interlock.Requirements{CrossProcess: true, TokensSurvive: tokens &^ o.Accept, ExclusionSurvives: exclusion &^ o.Accept}
}

// Election runs and observes elections. It is safe for concurrent use.
type Election struct {
	options    Options
	driver     driver.Fenced
	driverName failure.Driver // for errors
	fifo       bool
	locks      *lock.Fenced
	backend    *backend.Backend // nil if the driver is the caller's
	ctx        context.Context  // ends at Close
	cancel     context.CancelCauseFunc
	watches    sync.WaitGroup

	mu          sync.Mutex
	nominations map[string]nomination       // by election: the last one seen
	led         map[string]boottime.Instant // by election: when our last term ended; empty if fifo
}

// Open connects to the lock service at a URL, as lock.Open does, and returns its elections; see
// [New] and [Election.Close]. Without Options.Values it uses the backend's values, if the
// backend has any.
func Open(ctx context.Context, url string, o *Options) (*Election, error) {
	e, b, err := backend.Build(ctx, url, func(b *backend.Backend, d driver.Fenced) (*Election, error) {
		options := *cmp.Or(o, &Options{})
		if options.Values == nil {
			var err error
			if options.Values, err = b.ValuesIfAny(ctx, ""); err != nil {
				return nil, err
			}
		}
		return New(d, &options)
	})
	if err != nil {
		return nil, err
	}
	e.backend = b
	return e, nil
}

// New returns elections on d. It fails with an [*interlock.UnmetError] if d does not survive
// the faults in [Required]. It does not own d: close the elections first, then d.
func New(d driver.Fenced, o *Options) (*Election, error) {
	g := d.Guarantees()
	e := &Election{driver: d, driverName: failure.Driver(g.Driver), fifo: g.Order == interlock.FIFO, nominations: map[string]nomination{},
		led: map[string]boottime.Instant{}}
	var err error
	if e.options, err = o.resolve(g); err != nil {
		return nil, e.driverName.New("make election", "", interlock.Bug, err)
	}
	if err := g.Check(e.options.requirements(g.Liveness)); err != nil {
		return nil, e.driverName.New("make election", "", interlock.Definite,
			fmt.Errorf("%w (to accept a fault, name it in Options.Accept)", err))
	}
	// Each term needs a grant of its own, so the lock is never handed over inside the process.
	e.locks, err = lock.NewFenced(d, &lock.Options{Identity: e.options.Identity, TTL: e.options.TTL, Handovers: -1, Hooks: e.options.Hooks.Lock})
	if err != nil {
		return nil, err
	}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	return e, nil
}

// Identity returns the identity of this candidate, as observers see it.
func (e *Election) Identity() string { return e.options.Identity }

// Close ends waiting candidates and observers with interlock.ErrClosed. It blocks until they
// have returned and their requests in the backend have ended, or until ctx ends. A current
// leader leads until its function has returned. An observer's function must not call Close.
// After [Open], Close also disconnects: a leadership that still lasts expires by its lease.
func (e *Election) Close(ctx context.Context) error {
	err := e.close(ctx)
	return errors.Join(err, e.backend.Close(ctx))
}

func (e *Election) close(ctx context.Context) error {
	e.mu.Lock()
	e.cancel(interlock.ErrClosed)
	e.mu.Unlock()
	err := e.locks.Close(ctx)
	if late := join.Wait(ctx, e.watches.Wait); late != nil {
		return errors.Join(err, e.driverName.New("close election", "", interlock.Uncertain, late))
	}
	return err
}

func (e *Election) check(op, name string) error {
	if name == "" || len(name) > MaxName {
		return e.driverName.New(op, name, interlock.Bug, fmt.Errorf("%w: it has %d bytes, 1 to %d are allowed",
			interlock.ErrName, len(name), MaxName))
	}
	return nil
}

func worthRepeating(err error) bool {
	kind := interlock.Kind(err)
	return kind == interlock.Retryable || kind == interlock.Uncertain
}

// nomination is a nomination that this process has seen.
type nomination struct {
	token interlock.Token // of the leader who made it
	seen  boottime.Instant
}

// Hooks receive the events of the elections of this process. Every hook may be nil. Run calls
// them, so they must return at once: while Elected blocks, the candidate holds the leadership
// and its function does not run.
type Hooks struct {
	Elected func(Elected)
	Yielded func(Yielded)
	Ended   func(Ended)
	// Lock receives the events of the underlying lock: waiting, renewals, losses, failed
	// releases. Nil logs failures with Log.
	Lock *observe.Lock
}

// Elected reports that a term begins.
type Elected struct {
	Name  string
	Token interlock.Token
	Wait  time.Duration // from the call of Run
}

// Yielded reports that this candidate was elected and released the leadership in favor of a
// nominated one.
type Yielded struct {
	Name    string
	Nominee string
}

// Ended reports the end of a term: its function has returned, and the leadership was released
// or had been lost.
type Ended struct {
	Name  string
	Token interlock.Token
	Held  time.Duration // until the function had returned
	Cause error         // interlock.ErrReleased, ErrExpired, ErrLost or ErrSessionEnded in its chain
}
