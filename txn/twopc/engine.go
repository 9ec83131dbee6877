package twopc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// protocol is the prefix of these transactions' types.
const protocol = "2pc"

// A Defined is a [Definition] of any kind.
type Defined interface {
	defined() (string, driver.Participant)
}

// An Engine runs transactions over its participants, and finishes those of other processes. A
// coordinator has at most one. Its only goroutines are those of its calls. It is safe for concurrent
// use.
type Engine struct {
	coordinator  *coordinator.Coordinator
	options      Options
	participants map[string]driver.Participant
	random       func() uint32 // distinguishes runs that begin in the same second

	mu      sync.Mutex
	running map[string]int // runs in progress here, by name at participants
	scan    scan
}

// New returns an engine with these participants and registers it with c. Call it before c serves.
// A participant keeps its name while anything may be in doubt there, and is registered in every
// process that shares the journal.
func New(c *coordinator.Coordinator, o *Options, participants ...Defined) (*Engine, error) {
	options, err := o.resolve()
	if err != nil {
		return nil, err
	}
	m := &Engine{coordinator: c, options: options, participants: map[string]driver.Participant{},
		random: rand.Uint32, running: map[string]int{}, scan: newScan()}
	var problems []error
	for _, r := range participants {
		problems = append(problems, m.register(r))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	if err := c.Handle(protocol, secondPhase{m}); err != nil {
		return nil, err
	}
	c.Alongside(m.Watch)
	return m, nil
}

func (m *Engine) register(r Defined) error {
	if r == nil {
		return failure.Bug("register participant", "", "it is nil")
	}
	name, p := r.defined()
	if err := (driver.XID{Transaction: "x", Branch: name}).Check(); err != nil {
		return bug("register participant", name, err)
	}
	if p == nil {
		return failure.Bug("register participant", name, "it has no participant")
	}
	if m.participants[name] != nil {
		return failure.Bug("register participant", name, "the name is used twice; names must be unique")
	}
	m.participants[name] = p
	return nil
}

// participant returns the participant of a name.
func (m *Engine) participant(name string) (driver.Participant, error) {
	if p := m.participants[name]; p != nil {
		return p, nil
	}
	return nil, bug("call participant", name, fmt.Errorf("the engine has no participant of this name: register it"))
}

// kind returns the type of its transactions.
func (m *Engine) kind() string { return protocol + ":" + m.options.Name }

// markRunning marks a run as in progress until ended is called.
func (m *Engine) markRunning(r run) (ended func()) {
	name := r.String()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running[name]++
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.running[name]--; m.running[name] == 0 {
			delete(m.running, name)
		}
	}
}

// clean returns a context for clean-up, which ignores the caller's cancellation and has its own
// bound.
func (m *Engine) clean(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), m.options.Timeout)
}

// Options of an engine; nil and the zero value work.
type Options struct {
	// Name is the second part of the transactions' type in the journal, at most 200
	// bytes; empty means "transaction".
	Name string
	// Prepare bounds the vote of a participant. A missing vote counts as no. 0 means 10
	// seconds.
	Prepare time.Duration
	// Timeout bounds a call of a commit or a rollback, and all rollbacks of an abort before
	// Run returns; 0 means 10 seconds.
	Timeout time.Duration
	// Patience is how long a branch waits for a decision before an abort is presumed; 0 means
	// a minute. It should be longer than Prepare and the journal's Patience together, because
	// slower transactions are aborted.
	Patience time.Duration
	// Scan is the interval of the scans for branches in doubt; 0 means 10 seconds.
	Scan time.Duration
	// Retention is how long the journal keeps a decision, from the begin of its run; 0 means 7
	// days. An older branch without a decision is left to an operator.
	Retention time.Duration
	// Remind is the interval of the hook Heuristic for an outcome that no operator has
	// acknowledged; 0 means a day.
	Remind time.Duration
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.TwoPC
}

func (o *Options) resolve() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
		name      string
	}{{&r.Prepare, 10 * time.Second, "Prepare"}, {&r.Timeout, 10 * time.Second, "Timeout"}, {&r.Patience, time.Minute, "Patience"},
		{&r.Scan, 10 * time.Second, "Scan"}, {&r.Retention, 7 * 24 * time.Hour, "Retention"}, {&r.Remind, 24 * time.Hour, "Remind"}} {
		if *d.value < 0 {
			return r, failure.Bug("make engine", "", "%s is %v, below zero", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.byDefault
		}
	}
	if r.Patience >= r.Retention {
		return r, failure.Bug("make engine", "", "Patience (%v) must be below Retention (%v): otherwise no abort is ever presumed", r.Patience, r.Retention)
	}
	if r.Name == "" {
		r.Name = "transaction"
	}
	if len(r.Name) > 200 {
		return r, failure.Bug("make engine", r.Name, "its name has %d bytes; give it 1 to 200", len(r.Name))
	}
	r.Hooks = r.Hooks.WithDefaults()
	return r, nil
}
