// Package coordinator drives the unfinished transactions of a journal. It knows no protocol:
// saga, tcc and twopc decide what a transaction does next, and their packages are where to begin.
// It cannot prevent two processes from calling a participant at once: a process that resumes
// after a pause may still send a call that it had begun.
//
// Promised: each shard of the journal has one owner whose appends succeed; a new owner drives
// every transaction that the former one left; waiting and failing transactions are driven again
// until they have ended.
//
//	c, err := coordinator.New(j, nil)           // j: a journal.Journal
//	sagas, err := saga.New(c, nil, book, ship)  // a protocol and its definitions
//	err = c.Run(ctx, claim)                     // claim: that of a fenced lock; or Serve, for each shard
//
// To spread the shards over processes, join a group of package claim/partition with as many
// partitions, whose Work is Serve: see the example of [Coordinator.Serve].
//
// # Targets
//
// A call has a target: a system that is busy or broken as a whole. Each target has a limit of
// concurrent calls. A call that waits for it does not delay calls of others. A target that has
// not answered several times in a row counts as failing. When it answers again, waiting calls are
// repeated, two for each answer. So none waits for the rest of its backoff, and a target that
// answers only a few calls is not flooded.
//
// # Clocks
//
// Due times come from the clock of the process that writes them, and are compared with the clock
// of the process that owns the shard. If a clock is set back, due transactions wait. No decision
// depends on a clock.
package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A Protocol drives the transactions of its types.
type Protocol interface {
	// Drive drives a transaction as far as possible. It returns nil once the transaction has ended or
	// is due later. After a [journal.ErrConflict] it is called again with the new records, and after a
	// Retryable or Uncertain error after a pause of up to 10 s, 8 times in a row at most. After other
	// errors it is due again after Options.Recheck. It must not keep parts of t, and must call t from
	// one goroutine.
	Drive(t *Turn) error
}

// A Coordinator drives the transactions of all protocols on one journal. It has goroutines only
// while [Coordinator.Serve] runs. It is safe for concurrent use.
type Coordinator struct {
	journal *journal.Journal
	options Options
	slots   chan struct{} // one for each transaction that is read or written

	mu          sync.Mutex
	protocols   map[string]Protocol
	servers     map[int]*server
	waiters     map[string][]*Waiter
	targets     map[string]*target
	activeTurns int
	placed      map[string]int                // shards of active turns, if the hash of the id names another one
	foreign     map[string]foreignTransaction // by id
	jobs        []Job                         // run in the background
	alongside   []func(context.Context) error
	lastPolled  time.Time     // when a server last polled for all shards
	nextPoll    time.Duration // until the next poll; 0 means Options.Poll
	earlyPoll   *time.Timer   // requests it; nil before the first one
	pollNow     chan struct{} // holds one: a server polls at once

	listenMu      sync.Mutex // guards the next two; the notifier never takes it
	listeners     int
	stopListening func()
}

// New returns a coordinator on a journal, without a request. The journal stays open.
func New(j *journal.Journal, o *Options) (*Coordinator, error) {
	options, err := o.resolve()
	if err != nil {
		return nil, err
	}
	return &Coordinator{
		journal: j, options: options, slots: make(chan struct{}, options.Concurrency),
		protocols: map[string]Protocol{}, servers: map[int]*server{}, placed: map[string]int{},
		waiters: map[string][]*Waiter{}, targets: map[string]*target{}, foreign: map[string]foreignTransaction{},
		pollNow: make(chan struct{}, 1),
	}, nil
}

// Handle registers p for transactions whose type has the form protocol:name. Registering a
// protocol twice is a Bug, and so is registering one after Serve, because its unfinished
// transactions would not be driven.
func (c *Coordinator) Handle(protocol string, p Protocol) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case protocol == "" || strings.Contains(protocol, ":") || p == nil:
		return failure.Bug("handle protocol", protocol, "a name without a colon and a Protocol are required")
	case c.protocols[protocol] != nil:
		return failure.Bug("handle protocol", protocol, "a protocol of this name is registered")
	case len(c.servers) > 0:
		return failure.Bug("handle protocol", protocol, "the coordinator serves already")
	}
	c.protocols[protocol] = p
	return nil
}

// Alongside registers work of a protocol that runs in every process that serves, whichever shards
// it has. txn.Runtime runs it, and restarts it if it fails. Call it before [Coordinator.Serve].
func (c *Coordinator) Alongside(run func(ctx context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alongside = append(c.alongside, run)
}

// Beside returns the work registered by [Coordinator.Alongside], for the code that runs the
// coordinator.
func (c *Coordinator) Beside() []func(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.alongside)
}

// protocol returns the protocol of a type.
func (c *Coordinator) protocol(kind string) (Protocol, error) {
	name, _, _ := strings.Cut(kind, ":")
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.protocols[name]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%w: it is a %q, and the coordinator has no protocol %q", ErrForeign, kind, name)
}

// Journal returns the coordinator's journal.
func (c *Coordinator) Journal() *journal.Journal { return c.journal }

// Now returns the time of Options.Now.
func (c *Coordinator) Now() time.Time { return c.options.Now() }

// Random returns a number in [0,1), for jitter.
func (c *Coordinator) Random() float64 { return c.options.Random() }

// Begin creates a transaction with its first entries. If the id exists the error is a
// [journal.ErrExists]. A process that serves shards begins it in one of them, and drives it at once.
// If it serves none, or drives Options.Concurrency transactions already, the hash of the id selects
// the shard: Options.Notifier wakes its owner, or the owner finds it within its Options.Poll. After
// an Uncertain error it may have begun: begin it again.
func (c *Coordinator) Begin(ctx context.Context, id, kind string, entries ...journal.Entry) error {
	return c.BeginPrepared(ctx, id, kind, nil, entries...)
}

// BeginPrepared is [Coordinator.Begin] with a value that [Turn.Prepared] returns if the
// transaction is driven here at once.
func (c *Coordinator) BeginPrepared(ctx context.Context, id, kind string, prepared any, entries ...journal.Entry) error {
	now, t := c.options.Now(), c.reserve(id)
	if t == nil {
		_, err := c.journal.Begin(ctx, id, kind, now, entries...)
		if err == nil {
			c.tell(c.journal.ShardOf(id), c.noteBegun(id), id)
		}
		return err
	}
	log, err := t.server.shard.Begin(ctx, id, kind, now.Add(c.options.Recheck), entries...) // it is driven without a poll
	if err == nil {
		c.noteBegun(id)
		t.prepared = prepared
	}
	t.admit(log, err, entries, now)
	return err
}

// Nudge drives a transaction at once: use it after another writer has appended to it, or after
// the commit of a database transaction that began it. If its shard is not served here,
// Options.Notifier wakes its owner.
func (c *Coordinator) Nudge(id string) { c.tell(c.shardOf(id), noteChanged, id) }

// A Waiter waits for one transaction, from [Coordinator.Watch] to Stop. It must be used by one
// goroutine.
type Waiter struct {
	coordinator *Coordinator
	id          string
	wake        chan struct{} // holds one
	stop        func()        // stops listening to the notifier

	// The coordinator's mu guards these.
	begun      bool // the transaction was begun here since Watch, so that the first check can wait
	asked      bool // its owner knows that this process waits
	conclusion any  // of the last turn that ended here
}

// Watch returns a waiter for a transaction, which misses no later change. Call Stop when done.
func (c *Coordinator) Watch(id string) *Waiter {
	w := &Waiter{coordinator: c, id: id, wake: make(chan struct{}, 1), stop: c.listen()}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters[id] = append(c.waiters[id], w)
	return w
}

// Stop ends the waiting. It may be called again.
func (w *Waiter) Stop() {
	c := w.coordinator
	w.stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	left := slices.DeleteFunc(c.waiters[w.id], func(other *Waiter) bool { return other == w })
	if c.waiters[w.id] = left; len(left) == 0 {
		delete(c.waiters, w.id)
	}
}

// Wait blocks until done, which reads the transaction, returns true, whichever process drives
// it. Wait calls done at once, unless the transaction was begun here since Watch, then after each
// turn of the transaction, and every Options.Poll. concluded is the value of [Turn.Conclude], or
// nil. Wait returns a Definite error or a Bug of done; after others it calls done again. If ctx
// ends the transaction continues, and the error is Uncertain.
func (w *Waiter) Wait(ctx context.Context, done func(ctx context.Context, concluded any) (bool, error)) error {
	pause := w.coordinator.firstPause()
	for look := w.checkFirst(); ; look = true {
		if look {
			ended, err := done(ctx, w.takeConclusion())
			if err == nil && ended {
				return nil
			}
			if kind := interlock.Kind(err); err != nil && ctx.Err() == nil && (kind == interlock.Definite || kind == interlock.Bug) {
				return err
			}
		}
		wait := w.coordinator.options.Poll
		if w.askOwner() {
			wait, pause = pause, min(pause, wait/2)*2
		}
		timer := time.NewTimer(wait)
		select {
		case <-w.wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return &interlock.Error{Op: "wait for transaction", Name: w.id, Kind: interlock.Uncertain, Err: context.Cause(ctx)}
		}
		timer.Stop()
	}
}

// checkFirst reports whether to call done at once.
func (w *Waiter) checkFirst() bool {
	c := w.coordinator
	c.mu.Lock()
	defer c.mu.Unlock()
	return !w.begun || w.conclusion != nil
}

// askOwner notifies the owner once that this process waits, unless the transaction is driven here. It
// reports whether it is not.
func (w *Waiter) askOwner() (elsewhere bool) {
	c := w.coordinator
	shard := c.shardOf(w.id)
	if s := c.server(shard); s != nil && s.drives(w.id) {
		return false
	}
	c.mu.Lock()
	asked := w.asked
	w.asked = true
	c.mu.Unlock()
	if !asked {
		c.tell(shard, noteAwaited, w.id)
	}
	return true
}

// takeConclusion returns the conclusion, and clears it.
func (w *Waiter) takeConclusion() any {
	c := w.coordinator
	c.mu.Lock()
	defer c.mu.Unlock()
	concluded := w.conclusion
	w.conclusion = nil
	return concluded
}

// Await is [Waiter.Wait] of a new [Waiter], without conclusions.
func (c *Coordinator) Await(ctx context.Context, id string, done func(ctx context.Context) (bool, error)) error {
	w := c.Watch(id)
	defer w.Stop()
	return w.Wait(ctx, func(ctx context.Context, _ any) (bool, error) { return done(ctx) })
}

// wakeWaiters wakes the waiters of a transaction.
func (c *Coordinator) wakeWaiters(id string, conclusion any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.waiters[id] {
		if conclusion != nil {
			w.conclusion = conclusion
		}
		hints.Signal(w.wake)
	}
}

// shardOf returns the shard in which a transaction is driven here, or else that of the hash of
// its id. The owner of the latter reads the transaction, and forwards notifications to the owner
// of its shard.
func (c *Coordinator) shardOf(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if shard, driven := c.placed[id]; driven {
		return shard
	}
	return c.journal.ShardOf(id)
}

// server returns the server of a shard, or nil if the shard is not served here.
func (c *Coordinator) server(shard int) *server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers[shard]
}

// Serve owns a shard of the journal under a claim of claim/partition or any fenced lock. It drives
// the shard's transactions until ctx or the claim ends, first those that a former owner left. It
// returns the cause once no call is under way. The contexts of calls end first; their results are
// still written while the claim lasts. A coordinator serves a shard once at a time.
//
// A call that does not return within Options.Drain is left behind, so that the claim can be
// released and another owner can continue. The hook Hung reports it. Its goroutine ends when the
// call returns, keeps its place in the target's limit until then, and appends nothing. The next
// owner repeats the call under the same key.
func (c *Coordinator) Serve(ctx context.Context, claim interlock.Claim, shard int) error {
	owned, err := c.journal.Own(ctx, claim, shard)
	if err != nil {
		return err
	}
	s, err := c.addServer(ctx, claim, owned)
	if err != nil {
		return err
	}
	defer c.removeServer(s)
	return s.serve()
}

// Run serves all shards under one claim: in one process, while others wait for its lock.
func (c *Coordinator) Run(ctx context.Context, claim interlock.Claim) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var work sync.WaitGroup
	for shard := range c.journal.Shards() {
		work.Go(func() { stop(c.Serve(ctx, claim, shard)) })
	}
	work.Wait()
	return context.Cause(ctx)
}

func (c *Coordinator) addServer(ctx context.Context, claim interlock.Claim, owned *journal.Shard) (*server, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.servers[owned.Number()] != nil {
		return nil, failure.Bug("serve", driver.ShardName(owned.Number()), "this coordinator serves it already")
	}
	s := newServer(ctx, c, claim, owned)
	c.servers[owned.Number()] = s
	return s, nil
}

func (c *Coordinator) removeServer(s *server) {
	c.mu.Lock()
	delete(c.servers, s.shard.Number())
	for _, waiters := range c.waiters {
		for _, w := range waiters {
			w.asked = false // the next owner does not know that it waits
		}
	}
	c.mu.Unlock()
	s.close()
}

// reserve returns a turn for a transaction that is being begun, so that its server does not start
// another one. The shard is that of the hash of its id if it is served here, else any other one. It
// returns nil if none is served, or this process drives many transactions and the others share them.
func (c *Coordinator) reserve(id string) *Turn {
	if s := c.place(id); s != nil {
		return s.take(id)
	}
	return nil
}

func (c *Coordinator) place(id string) *server {
	c.mu.Lock()
	defer c.mu.Unlock()
	if shard, driven := c.placed[id]; driven {
		return c.servers[shard] // take finds its turn
	}
	if s := c.servers[c.journal.ShardOf(id)]; s != nil || c.activeTurns >= c.options.Concurrency {
		return s
	}
	for _, s := range c.servers { // in random order
		return s
	}
	return nil
}

// Emit calls a hook with an event, unless the hook is nil. It is for packages of protocols.
func Emit[E any](hook func(E), e E) {
	if hook != nil {
		hook(e)
	}
}

// ownershipLost reports whether an error means that the shard has another owner.
func ownershipLost(err error) bool {
	return errors.Is(err, interlock.ErrStaleToken) || errors.Is(err, interlock.ErrExpired)
}

// Options of a coordinator; nil and the zero value work.
type Options struct {
	// Concurrency bounds the transactions that are read or written at once, without those that
	// wait or call; 0 means 256.
	Concurrency int
	// PerTarget bounds the concurrent calls of one target; 0 means 64.
	PerTarget int
	// Held bounds the transactions in memory; 0 means 50,000. Above it, due transactions and
	// those of a former owner wait; those begun here do not. At most a quarter of Held waits for
	// places of one target, and half for a target whose calls failed. Others that call this
	// target are left until they are due again.
	Held int
	// Poll is the interval of requests for due transactions, one request for all shards served
	// here, and of the reads of an Await; 0 means a second. Without a Notifier the intervals are
	// shorter after a poll has found a transaction of another process, and during an Await for
	// one: they begin at 20 ms, and double up to Poll.
	Poll time.Duration
	// Notifier wakes the owner of a shard when another process begins or changes a transaction,
	// and waiters when a transaction ends in another process. The processes of a journal share
	// one notifier, for nothing else. nil leaves both to Poll.
	Notifier driver.Notifier
	// Recheck bounds the time after its last record when a transaction is due again, unless its
	// protocol set another time; 0 means a minute. That time is at least half of Recheck. A new
	// owner of the shard does not wait for it.
	Recheck time.Duration
	// Drain bounds the wait of Serve for calls under way, once its context or the claim has
	// ended; 0 means 30 seconds. Later ones are abandoned: see [Coordinator.Serve].
	Drain time.Duration
	// TakeOvers is the number of take-overs in a row without an answered call after which a
	// transaction becomes a dead letter: its owner seems to crash each time. 0 means 10; below
	// zero it never does.
	TakeOvers int
	// Yield is the time after which a shard with due transactions of unknown types is given to
	// another process, if there is one. The claim must be a [Yielder], such as that of a
	// partition of claim/partition. Calls under way return first. If no process drives those
	// transactions, the time doubles, up to 64 times Yield. 0 means 10 seconds; below zero a
	// shard is never given away.
	Yield time.Duration
	// Reconcile is the interval of comparisons of ended transactions with their participants, in
	// one process for all. 0 means an hour for sagas with an Action.Check, and never for TCC,
	// whose branches it calls once more. Below zero there are none.
	Reconcile time.Duration
	// Retention sets what is removed in the background.
	Retention Retention
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Coordinator
	// Now is the clock of due times and deadlines; nil means time.Now.
	Now func() time.Time
	// Random returns a number in [0,1) for the jitter of pauses; nil means that of math/rand.
	Random func() float64
}

func (o *Options) resolve() (Options, error) {
	r := *cmp.Or(o, &Options{})
	for _, n := range []struct {
		value     *int
		byDefault int
		name      string
	}{{&r.Concurrency, 256, "Concurrency"}, {&r.PerTarget, 64, "PerTarget"}, {&r.Held, 50_000, "Held"}} {
		if *n.value < 0 {
			return r, failure.Bug("make coordinator", "", "%s is %d, below zero", n.name, *n.value)
		}
		if *n.value == 0 {
			*n.value = n.byDefault
		}
	}
	r.Poll = cmp.Or(max(r.Poll, 0), time.Second)
	r.Recheck = cmp.Or(max(r.Recheck, 0), time.Minute)
	r.Drain = cmp.Or(max(r.Drain, 0), 30*time.Second)
	r.Yield = cmp.Or(r.Yield, 10*time.Second)
	r.TakeOvers = cmp.Or(r.TakeOvers, 10)
	var err error
	if r.Retention, err = r.Retention.resolve(); err != nil {
		return r, err
	}
	r.Hooks = r.Hooks.WithDefaults()
	if r.Now == nil {
		r.Now = time.Now
	}
	if r.Random == nil {
		r.Random = rand.Float64
	}
	return r, nil
}
