package twopc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// protocol is the prefix of these transactions' types.
const protocol = "2pc"

// A Defined is a [Definition] of any kind.
type Defined interface {
	defined() (string, driver.Participant)
}

// A Definition is a named participant in which transactions open branches. B is the type of a branch,
// such as pgx.Tx. [Define] creates it.
type Definition[B any] struct {
	name     string
	preparer driver.Preparer[B]
}

// Define names a participant with 1 to driver.MaxXIDBranch letters, digits, - and _. The name is
// unique in the engine and the same in all processes and over time, because branches in doubt
// contain it.
func Define[B any](name string, p driver.Preparer[B]) Definition[B] { return Definition[B]{name, p} }

func (r Definition[B]) defined() (string, driver.Participant) { return r.name, r.preparer }

// Finisher names a participant, as [Define] does, whose branches this process finishes and lists
// but does not open. It is for services and commands that complete transactions of others.
func Finisher(name string, p driver.Participant) Defined { return finisher{name, p} }

type finisher struct {
	name        string
	participant driver.Participant
}

func (f finisher) defined() (string, driver.Participant) { return f.name, f.participant }

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
	if c == nil {
		return nil, failure.Bug("make engine", "", "there is no coordinator")
	}
	options, err := o.resolve(c.Keep())
	if err != nil {
		return nil, err
	}
	m := &Engine{coordinator: c, options: options, participants: map[string]driver.Participant{},
		random: rand.Uint32, running: map[string]int{}, scan: scan{map[branchAt]time.Time{}, map[branchAt]time.Time{}}}
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
	return coordinator.WithTimeout(context.WithoutCancel(ctx), m.options.Timeout)
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
	// Retention is how long the journal keeps a decision, from the begin of its run, at most the
	// Retention.Keep of the coordinator; 0 means 7 days, or seven eighths of Keep if that is less. An
	// older branch without a decision is left to an operator.
	Retention time.Duration
	// Remind is the interval of the hook Heuristic for an outcome that no operator has
	// acknowledged; 0 means a day.
	Remind time.Duration
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.TwoPC
}

// resolve returns the options for a journal that keeps ended transactions for a time; below zero for ever.
func (o *Options) resolve(keep time.Duration) (Options, error) {
	if keep < 0 {
		keep = math.MaxInt64
	}
	r := *cmp.Or(o, &Options{})
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
		name      string
	}{{&r.Prepare, 10 * time.Second, "Prepare"}, {&r.Timeout, 10 * time.Second, "Timeout"}, {&r.Patience, time.Minute, "Patience"},
		{&r.Scan, 10 * time.Second, "Scan"}, {&r.Retention, min(7*24*time.Hour, keep-keep/8), "Retention"}, {&r.Remind, 24 * time.Hour, "Remind"}} {
		if *d.value < 0 {
			return r, failure.Bug("make engine", "", "%s is %v, below zero", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.byDefault
		}
	}
	if r.Retention > keep {
		return r, failure.Bug("make engine", "", "Retention is %v, and the coordinator's Retention.Keep %v: a branch could be aborted after its commit was removed", r.Retention, keep)
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

// An Operator changes transactions by hand. It needs no participants and owns no shard: the owner of
// the shard finds its records. It is safe for concurrent use. For transactions without a decision
// use [Engine.Settle].
//
// A change that the transaction's state does not allow is a [*StateError], and an id without
// a transaction an [ErrNone]; both are Definite.
type Operator struct{ journal *journal.Journal }

// NewOperator returns an operator on a journal, and does not close it.
func NewOperator(j *journal.Journal) *Operator { return &Operator{j} }

// Operator returns an operator on the engine's journal.
func (m *Engine) Operator() *Operator { return NewOperator(m.coordinator.Journal()) }

// List yields the transactions that match the filter, in the order of their keys; see
// [coordinator.Records.List].
func (o *Operator) List(ctx context.Context, f Filter) iter.Seq2[Outcome, error] {
	return records.List(ctx, o.journal, f)
}

// Retry resumes a halted transaction. The operator has made sure that its calls do not crash again.
func (o *Operator) Retry(ctx context.Context, id string, by By) error {
	return o.act(ctx, "retry", id, by, func(m *machine) error {
		if m.halted == "" {
			return errors.New("it is not halted")
		}
		return nil
	}, record(recordRetry, "", by))
}

// Resolve ends a HEURISTIC transaction: an operator has corrected or accepted what the participants did
// against the decision. Branches that remain to be committed must be committed first.
func (o *Operator) Resolve(ctx context.Context, id string, by By) error {
	return o.act(ctx, "resolve", id, by, func(m *machine) error {
		if !m.settled() {
			return fmt.Errorf("only a HEURISTIC transaction without open branches is resolved; open: %q", m.left())
		}
		return nil
	}, record(recordResolved, "", by), end())
}

func (o *Operator) act(ctx context.Context, op, id string, by By, refuses func(*machine) error, entries ...journal.Entry) error {
	if err := by.Check(op, id); err != nil {
		return err
	}
	return records.Change(ctx, o.journal, op, Key(id), "", func(t coordinator.Transaction[machine]) ([]journal.Entry, error) {
		if err := t.State.checkID(id); err != nil {
			return nil, err
		}
		return entries, refuses(&t.State)
	})
}

// An Outcome is the state of a transaction in the journal. Dead has the heuristic branches; if the
// transaction is halted, it also has those that are not known to be committed.
type Outcome struct {
	coordinator.Summary
	Key         string   // in the journal; also the ID, if the process that decided did not know the user's
	Transaction string   // the name of the decided run at participants
	Branches    []Branch // of a commit, those that voted yes; of an abort, the heuristic ones
	DecidedBy   string   // the operator who decided; empty if it was an engine
	Decided     time.Time
}

// A Branch is the part of one participant.
type Branch struct {
	Participant string `json:"participant"`
	// Done means that the journal has it as committed. That is recorded once all branches
	// are committed, or one is heuristic.
	Done bool `json:"done"`
	// Heuristic is the participant's error, if the branch was finished against the decision.
	Heuristic string `json:"heuristic,omitempty"`
	// Failing is the last error in the journal of a participant that cannot commit, and
	// Attempts the number of its failures.
	Failing  string `json:"error,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
}

// Look reads the decision on an id. The error is an [ErrNone] if there is none: the run is under
// way, was aborted without a record, had one participant, or its retention is over.
func (m *Engine) Look(ctx context.Context, id string) (Outcome, error) {
	t, err := m.stored(ctx, "look at transaction", id)
	if err != nil {
		return Outcome{}, err
	}
	return records.Outcome(t), nil
}

func (m *machine) outcome(head driver.Head, entries []journal.Entry) Outcome {
	key := head.Transaction
	o := Outcome{Summary: coordinator.SummaryOf(head), Key: key, Transaction: m.name(key), DecidedBy: m.data.Actor}
	o.ID, o.State, o.Decision, o.Reason, o.Halted, o.Resolved = cmp.Or(m.data.ID, key), m.state, m.decision, m.data.Reason, m.halted, m.resolved
	if len(entries) > 0 {
		o.Decided = entries[0].Written
	}
	for _, p := range m.branches {
		b, e := Branch{Participant: p.name, Done: p.fate == done, Attempts: p.attempts}, StepError{Step: p.name, Err: p.err, Attempts: p.attempts}
		switch {
		case p.fate == againstDecision:
			b.Heuristic = p.err
			o.Dead = append(o.Dead, e)
		case p.fate == open && m.halted != "":
			b.Failing, e.Err = p.err, m.halted
			o.Dead = append(o.Dead, e)
		case p.fate == open && p.err != "":
			b.Failing = p.err
			o.Failing = append(o.Failing, e)
		}
		o.Branches = append(o.Branches, b)
	}
	return o
}

// Wait blocks until a decided transaction has ended: all participants have committed, so its effects
// are visible. The error is:
//
//   - an [*AbortedError] if it was aborted
//   - an [ErrHeuristic] if an operator must act
//   - an [ErrHalted], which is Uncertain, if it waits for [Operator.Retry]
//   - an [ErrNone] as that of [Engine.Look]
//   - Uncertain if ctx ends
func (m *Engine) Wait(ctx context.Context, id string) (o Outcome, err error) {
	const op = "wait for transaction"
	var halted error
	err = m.coordinator.Await(ctx, Key(id), func(ctx context.Context) (bool, error) {
		t, err := m.stored(ctx, op, id)
		if err != nil {
			return false, err
		}
		recorded := &t.State
		o = records.Outcome(t)
		switch {
		case recorded.state == Heuristic && recorded.settled():
			return false, definite(op, id, fmt.Errorf("%w: %s", ErrHeuristic, recorded.heuristicErrors()))
		case recorded.decision == Abort:
			return false, m.outcomeOfOther(id, recorded, nil)
		case recorded.halted != "":
			halted = uncertain(op, id, fmt.Errorf("%w: %s", ErrHalted, recorded.halted))
			return true, nil
		}
		return recorded.ended, nil
	})
	if err != nil {
		return o, err
	}
	return o, halted
}
