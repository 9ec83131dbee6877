package saga

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Options of an engine; nil and the zero value work.
type Options struct {
	// Remind is how often the hook Dead is told of a dead letter; 0 means a day.
	Remind time.Duration
	// Stuck is after how many failed attempts the hook Stuck is told of a step that is
	// repeated for ever, and again after as many more; 0 means 20.
	Stuck int
	// Hooks are told what happens; nil is nobody.
	Hooks *observe.Saga
}

func (o *Options) resolve() Options {
	var r Options
	if o != nil {
		r = *o
	}
	if r.Remind <= 0 {
		r.Remind = 24 * time.Hour
	}
	if r.Stuck <= 0 {
		r.Stuck = 20
	}
	if r.Hooks == nil {
		r.Hooks = &observe.Saga{}
	}
	return r
}

// protocol is what the types of sagas begin with in the journal.
const protocol = "saga"

// An Engine knows the definitions of sagas, and what they do next; its coordinator
// drives them. It is safe for concurrent use.
type Engine struct {
	coordinator *coordinator.Coordinator
	options     Options
	plans       map[string]plan
}

// New makes the engine of a coordinator that does not serve yet; it has one at most.
// What is wrong with a definition is a [*DefinitionError]; all of them are told.
func New(c *coordinator.Coordinator, o *Options, definitions ...Defined) (*Engine, error) {
	e := &Engine{coordinator: c, options: o.resolve(), plans: map[string]plan{}}
	var problems []error
	for _, d := range definitions {
		p := d.defined()
		problems = append(problems, p.check())
		if _, twice := e.plans[p.name]; twice {
			problems = append(problems, p.wrong("", "there are two of that name; give each its own"))
		}
		p.known = slices.Clone(p.known) // other engines may have the definition too
		for i := range p.known {
			p.known[i] = p.known[i].resolved()
		}
		e.plans[p.name] = p
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return e, c.Handle(protocol, e)
}

// start begins a saga, or attaches to the one that there is.
func (e *Engine) start(ctx context.Context, kind, id string, input []byte) error {
	p, ok := e.plans[kind]
	if !ok {
		return bug("start saga", id, fmt.Errorf("the engine was built without the definition %q", kind))
	}
	entries, err := p.opening(id, input, e.coordinator.Now())
	if err != nil {
		return err
	}
	err = e.coordinator.Begin(ctx, id, protocol+":"+kind, entries...)
	if errors.Is(err, journal.ErrExists) {
		return e.attach(ctx, kind, id, input)
	}
	if err == nil && e.options.Hooks.Started != nil {
		e.options.Hooks.Started(observe.SagaStarted{Saga: id, Type: kind})
	}
	return err
}

// opening is the first append of a saga: with what makes it go the records of the
// steps that may be called first, as many as fit.
func (p plan) opening(id string, input []byte, now time.Time) ([]journal.Entry, error) {
	var deadline time.Time
	if p.timeout > 0 {
		deadline = now.Add(p.timeout)
	}
	c, err := newCourse(p, driver.Head{Transaction: id}, []journal.Entry{begin(input, deadline)}, true)
	if err != nil {
		return nil, err
	}
	defer c.close()
	c.pending = []journal.Entry{begin(input, deadline)}
	stages, err := c.planner.rest(&c.m)
	if err == nil && len(stages) > 0 && !stages[0].steps[0].sleep {
		err = c.note(now, true, c.sents(stages)...)
	}
	return c.pending[:min(len(c.pending), driver.MaxRecords)], err
}

// attach checks that the saga of an id is the one that was to be started.
func (e *Engine) attach(ctx context.Context, kind, id string, input []byte) error {
	log, m, err := read(ctx, e.coordinator.Journal(), id)
	if err != nil {
		return err
	}
	switch {
	case nameOf(log.Head().Type) != kind:
		return &MismatchError{ID: id, Problem: fmt.Sprintf("it was started as a %q, not as a %q: give this one another id", nameOf(log.Head().Type), kind)}
	case string(m.input) != string(input):
		return &MismatchError{ID: id, Problem: "it was started with other input: repeat a start with the same input, or give this saga another id"}
	}
	return nil
}

func bug(op, name string, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Bug, Err: err}
}
