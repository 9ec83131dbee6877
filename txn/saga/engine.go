package saga

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Options of an engine; nil and the zero value work.
type Options struct {
	// Concurrency is how many sagas are under way in this engine at once, without
	// those that wait before they repeat a call; 0 means 64.
	Concurrency int
	// Poll is how often each shard is asked for sagas that others have started, and
	// how often a Wait looks at a saga that another engine drives; 0 means a second.
	Poll time.Duration
	// Recheck is how long a saga that nobody seems to drive is left alone, after its
	// last record; 0 means a minute. A new owner of the shard does not wait for it.
	Recheck time.Duration
	// Remind is how often the hook Dead is told of a dead letter; 0 means a day.
	Remind time.Duration
	// Hooks are told what happens; nil is nobody.
	Hooks *observe.Saga

	now    func() time.Time // nil is time.Now
	random func() float64   // nil is rand.Float64
}

func (o *Options) resolve() Options {
	var r Options
	if o != nil {
		r = *o
	}
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
	}{{&r.Poll, time.Second}, {&r.Recheck, time.Minute}, {&r.Remind, 24 * time.Hour}} {
		if *d.value <= 0 {
			*d.value = d.byDefault
		}
	}
	if r.Concurrency <= 0 {
		r.Concurrency = 64
	}
	if r.Hooks == nil {
		r.Hooks = &observe.Saga{}
	}
	if r.now == nil {
		r.now = time.Now
	}
	if r.random == nil {
		r.random = rand.Float64
	}
	return r
}

// An Engine runs the sagas of its definitions. It has no goroutines but those of
// [Engine.Serve]. It is safe for concurrent use.
type Engine struct {
	journal *journal.Journal
	options Options
	plans   map[string]plan
	slots   chan struct{} // one for each saga under way

	mu      sync.Mutex
	servers map[int]*server
	waiters map[string][]chan struct{}
}

// New makes an engine on a journal, which stays open. What is wrong with a
// definition is a [*DefinitionError]; all of them are told.
func New(j *journal.Journal, o *Options, definitions ...Defined) (*Engine, error) {
	e := &Engine{journal: j, options: o.resolve(), plans: map[string]plan{}, servers: map[int]*server{}, waiters: map[string][]chan struct{}{}}
	e.slots = make(chan struct{}, e.options.Concurrency)
	var problems []error
	for _, d := range definitions {
		p := d.defined()
		problems = append(problems, p.check())
		if _, twice := e.plans[p.name]; twice {
			problems = append(problems, p.wrong("", "there are two of that name; give each its own"))
		}
		p.steps = slices.Clone(p.steps) // other engines may have the definition too
		for i := range p.steps {
			s := &p.steps[i]
			s.policy = s.policy.resolve()
			if s.timeout <= 0 {
				s.timeout = 30 * time.Second
			}
		}
		e.plans[p.name] = p
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return e, nil
}

// start begins a saga, or attaches to the one that there is.
func (e *Engine) start(ctx context.Context, kind, id string, input []byte) error {
	p, ok := e.plans[kind]
	if !ok {
		return bug("start saga", id, fmt.Errorf("the engine was built without the definition %q", kind))
	}
	now := e.options.now()
	var deadline time.Time
	if p.timeout > 0 {
		deadline = now.Add(p.timeout)
	}
	// If its shard is served here nobody else has to find it.
	due, s := now, e.reserve(id)
	if s != nil {
		due = now.Add(e.options.Recheck)
	}
	_, err := e.journal.Begin(ctx, id, kind, due, begin(p, input, deadline)...)
	if s != nil {
		s.admit(id, err == nil)
	}
	if errors.Is(err, journal.ErrExists) {
		return e.attach(ctx, kind, id, input)
	}
	if err == nil && e.options.Hooks.Started != nil {
		e.options.Hooks.Started(observe.SagaStarted{Saga: id, Type: kind})
	}
	return err
}

// attach checks that the saga of an id is the one that was to be started.
func (e *Engine) attach(ctx context.Context, kind, id string, input []byte) error {
	head, m, err := e.read(ctx, id)
	if err != nil {
		return err
	}
	switch {
	case head.Type != kind:
		return &MismatchError{ID: id, Problem: fmt.Sprintf("it was started as a %q, not as a %q: give this one another id", head.Type, kind)}
	case string(m.input) != string(input):
		return &MismatchError{ID: id, Problem: "it was started with other input: repeat a start with the same input, or give this saga another id"}
	}
	return nil
}

// read is a saga as it stands in the journal.
func (e *Engine) read(ctx context.Context, id string) (driver.Head, machine, error) {
	log, entries, err := e.journal.Open(ctx, id)
	if err != nil {
		return driver.Head{}, machine{}, err
	}
	if log == nil {
		return driver.Head{}, machine{}, &interlock.Error{Op: "read saga", Name: id, Kind: interlock.Definite, Err: ErrNone}
	}
	m, err := replay(entries)
	if err != nil {
		return driver.Head{}, machine{}, bug("read saga", id, err)
	}
	return log.Head(), m, nil
}

// Serve owns a shard of the journal under a claim, of claim/own or any fenced lock,
// and drives its sagas until ctx or the claim ends, with what a former owner left
// first. It returns the cause, once no action runs any more: actions are told by
// their contexts, and what they have achieved is still written if the claim lasts.
// A shard is served once at a time by an engine.
func (e *Engine) Serve(ctx context.Context, claim interlock.Claim, shard int) error {
	owned, err := e.journal.Own(ctx, claim, shard)
	if err != nil {
		return err
	}
	s, err := e.enlist(ctx, claim, owned)
	if err != nil {
		return err
	}
	defer e.dismiss(s)
	return s.serve()
}

// Run serves all shards under one claim: enough for one process, with others that
// stand by for its lock.
func (e *Engine) Run(ctx context.Context, claim interlock.Claim) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var work sync.WaitGroup
	for shard := range e.journal.Shards() {
		work.Go(func() { stop(e.Serve(ctx, claim, shard)) })
	}
	work.Wait()
	return context.Cause(ctx)
}

func (e *Engine) enlist(ctx context.Context, claim interlock.Claim, owned *journal.Shard) (*server, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.servers[owned.Number()] != nil {
		return nil, bug("serve", driver.ShardName(owned.Number()), errors.New("this engine serves it already"))
	}
	s := newServer(ctx, e, claim, owned)
	e.servers[owned.Number()] = s
	return s, nil
}

func (e *Engine) dismiss(s *server) {
	e.mu.Lock()
	delete(e.servers, s.shard.Number())
	e.mu.Unlock()
	s.close()
}

// reserve keeps the server of a saga's shard from taking it up, until it is
// admitted; nil if there is no server here.
func (e *Engine) reserve(id string) *server {
	e.mu.Lock()
	s := e.servers[e.journal.ShardOf(id)]
	e.mu.Unlock()
	if s == nil || !s.take(id) {
		return nil
	}
	return s
}

func bug(op, name string, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Bug, Err: err}
}
