package saga

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// Options of an engine; nil and the zero value work.
type Options struct {
	// Remind is how often the hook Dead is called for a dead letter; 0 means a day.
	Remind time.Duration
	// Stuck is the number of failed attempts between calls of the hook Stuck, for a step that
	// is repeated without a bound; 0 means 20.
	Stuck int
	// Hooks receive events; nil logs failures, see package observe.
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
	r.Hooks = r.Hooks.WithDefaults()
	return r
}

// protocol is the part of transaction types before the colon.
const protocol = "saga"

// An Engine has the definitions of sagas and decides their next actions; its coordinator executes
// them. It is safe for concurrent use.
type Engine struct {
	coordinator *coordinator.Coordinator
	options     Options
	plans       map[string]plan

	mu      sync.Mutex
	misfits map[string]*MismatchError // of sagas that cannot be driven, by their ids
}

// New returns an engine on a coordinator that does not serve yet. A coordinator has at most one
// engine of sagas. Each problem of a definition is reported as a [*DefinitionError].
func New(c *coordinator.Coordinator, o *Options, definitions ...Defined) (*Engine, error) {
	e := &Engine{coordinator: c, options: o.resolve(), plans: map[string]plan{}, misfits: map[string]*MismatchError{}}
	var problems []error
	for _, d := range definitions {
		if d == nil {
			problems = append(problems, plan{}.wrong("", "it is nil; give it one"))
			continue
		}
		p := d.defined()
		problems = append(problems, p.check())
		if _, twice := e.plans[p.key()]; twice {
			problems = append(problems, p.wrong("", "the name is used twice; use unique names, or different Versions"))
		}
		p.known = slices.Clone(p.known) // other engines may have the definition too
		for i := range p.known {
			p.known[i] = p.known[i].resolved()
		}
		e.plans[p.key()] = p
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	if err := c.Handle(protocol, e); err != nil {
		return nil, err
	}
	return e, c.Reconciles(e.reconciles())
}

// Drives reports whether the engine has the definition of a type; see
// [coordinator.Selective].
func (e *Engine) Drives(kind string) bool {
	_, ok := e.plans[nameOf(kind)]
	return ok
}

// isBug reports whether the kind of an error is Bug.
func isBug(err error) bool { return interlock.Kind(err) == interlock.Bug }

func bug(op, name string, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Bug, Err: err}
}
