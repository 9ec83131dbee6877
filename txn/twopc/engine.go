package twopc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// protocol is what the types of these transactions begin with in the journal.
const protocol = "2pc"

// A Defined is a [Definition] of any kind.
type Defined interface {
	defined() (string, driver.Participant)
}

// An Engine runs transactions over its participants, and finishes those that others
// began. A coordinator has one. It has no goroutines but those of its calls. It is safe
// for concurrent use.
type Engine struct {
	coordinator  *coordinator.Coordinator
	options      Options
	participants map[string]driver.Participant
	chance       func() uint32 // tells runs apart that begin in one second

	mu      sync.Mutex
	running map[string]int // runs under way here, by what participants know
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
		chance: rand.Uint32, running: map[string]int{}, scan: newScan()}
	var problems []error
	for _, r := range participants {
		problems = append(problems, m.register(r))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	if err := c.Handle(protocol, driving{m}); err != nil {
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
		return failure.Bug("register participant", name, "there is none of that name: give it a participant")
	}
	if m.participants[name] != nil {
		return failure.Bug("register participant", name, "there are two of that name; give each its own")
	}
	m.participants[name] = p
	return nil
}

// participant is that of a name.
func (m *Engine) participant(name string) (driver.Participant, error) {
	if p := m.participants[name]; p != nil {
		return p, nil
	}
	return nil, bug("call participant", name, fmt.Errorf("the engine was built without it: register it under this name"))
}

// kind is the type of its transactions in the journal.
func (m *Engine) kind() string { return protocol + ":" + m.options.Name }

// enlist marks a run as under way here until ended is called.
func (m *Engine) enlist(r run) (ended func()) {
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

// clean is a context for what has to be done though the caller's has ended. It has its
// own bound.
func (m *Engine) clean(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), m.options.Timeout)
}
