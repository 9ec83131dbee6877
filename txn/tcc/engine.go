package tcc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// protocol is the part of transaction types before the colon.
const protocol = "tcc"

// unknown is the type of a transaction that was cancelled before its type was known.
const unknown = protocol + ":unknown"

// name is the type of a transaction without the protocol.
func name(kind string) string { return strings.TrimPrefix(kind, protocol+":") }

// Options of an engine; nil and the zero value work.
type Options struct {
	// Hold bounds how long branches are held without a decision; 0 means a minute. It is at most the
	// Retention.Margin of the coordinator.
	Hold time.Duration
	// Margin is the last part of Hold, in which no transaction is confirmed; 0 means a sixth
	// of Hold. Half of it is for the append of the decision, the other half for clocks of
	// participants that are ahead of this one.
	Margin time.Duration
	// Timeout bounds each call; 0 means 10 seconds.
	Timeout time.Duration
	// Retry sets when calls are repeated.
	Retry Policy
	// Remind is how often the hook Dead is called for a dead letter; 0 means a day.
	Remind time.Duration
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.TCC
}

func (o *Options) resolve() (Options, error) {
	r := *cmp.Or(o, &Options{})
	r.Hold = cmp.Or(max(r.Hold, 0), time.Minute)
	r.Margin = cmp.Or(max(r.Margin, 0), r.Hold/6)
	r.Timeout = cmp.Or(max(r.Timeout, 0), 10*time.Second)
	r.Remind = cmp.Or(max(r.Remind, 0), 24*time.Hour)
	if r.Margin >= r.Hold {
		return r, failure.Bug("make engine", "", "Margin is %v, and Hold %v: nothing could ever be confirmed", r.Margin, r.Hold)
	}
	r.Retry = r.Retry.resolve()
	r.Hooks = r.Hooks.WithDefaults()
	return r, nil
}

// An Engine runs transactions over its resources. The coordinators of its journal execute the
// decisions, in any process whose engine has the resources. Its only goroutines are those of
// [Engine.Run] and [Engine.Submit]. It is safe for concurrent use.
type Engine struct {
	coordinator *coordinator.Coordinator
	options     Options
	handles     map[string]handle

	life context.Context // of what was submitted
	end  context.CancelCauseFunc
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// New returns an engine on a coordinator that does not serve yet. A coordinator has at most one
// engine of TCC. Each problem of a resource is reported, as a Bug.
func New(c *coordinator.Coordinator, o *Options, resources ...Defined) (*Engine, error) {
	options, err := o.resolve()
	problems := []error{err}
	switch {
	case c == nil:
		problems = append(problems, failure.Bug("make engine", "", "there is no coordinator"))
	case options.Hold > c.Margin():
		problems = append(problems, failure.Bug("make engine", "", "Hold is %v, and the coordinator's Retention.Margin %v: participants could forget a try before its decision", options.Hold, c.Margin()))
	}
	m := &Engine{coordinator: c, options: options, handles: map[string]handle{}}
	m.life, m.end = context.WithCancelCause(context.Background())
	for _, r := range resources {
		var h handle
		if r != nil {
			h = r.handle()
		}
		problems = append(problems, driver.CheckName("make engine", "a resource", h.name, maxBranch))
		switch _, twice := m.handles[h.name]; {
		case h.try == nil:
			problems = append(problems, failure.Bug("make engine", h.name, "the resource is nil"))
		case twice:
			problems = append(problems, failure.Bug("make engine", h.name, "there are two resources of that name; give each its own"))
		}
		m.handles[h.name] = h
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	if err := c.Handle(protocol, m); err != nil {
		return nil, err
	}
	for _, h := range m.handles {
		if h.watch != nil {
			c.Alongside(func(ctx context.Context) error { return h.watch(ctx, m.Decide) })
		}
	}
	return m, c.Reconciles(m.reconciles())
}

// read is a transaction in the journal.
func (m *Engine) read(ctx context.Context, op, id string) (driver.Head, machine, error) {
	t, err := records.Read(ctx, m.coordinator.Journal(), op, id)
	return t.Head, t.State, err
}

// Look reads the state of a transaction, whichever process drives it. If an [Engine.Run] of the id
// has no decision yet, or the retention of the transaction is over, the error is an [ErrNone]. A
// submitted transaction without a decision has the state TRYING.
func (m *Engine) Look(ctx context.Context, id string) (Outcome, error) {
	return records.Look(ctx, m.coordinator.Journal(), "look at transaction", id)
}

// Wait blocks until a decided transaction has ended or is a dead letter, whichever process drives
// it. The error is that of [Outcome.Err]. If ctx ends the transaction continues, and the error is
// Uncertain.
func (m *Engine) Wait(ctx context.Context, id string) (o Outcome, err error) {
	err = m.coordinator.Await(ctx, id, func(ctx context.Context) (bool, error) {
		o, err = m.Look(ctx, id)
		return o.State.Final(), err
	})
	if err != nil {
		return o, err
	}
	return o, o.Err()
}

// Decide returns the decision on a branch of a transaction. A participant calls it when the time
// of a hold is over. If there is no decision, Decide decides to cancel, durably, before it
// returns; the transaction cannot be confirmed afterwards. A branch that a submitted transaction does
// not have is to cancel, and Decide decides nothing. It blocks for up to Options.Patience of the
// journal. After an error the decision is unknown: call it again.
func (m *Engine) Decide(ctx context.Context, id, branch string) (Decision, error) {
	const op = "decide"
	if err := errors.Join(driver.CheckName(op, "a transaction", id, driver.MaxTransaction), driver.CheckName(op, "a branch", branch, maxBranch)); err != nil {
		return "", err
	}
	for {
		t, err := records.Read(ctx, m.coordinator.Journal(), op, id)
		reason := fmt.Sprintf("branch %q asked, and nothing was decided", branch)
		if err == nil && t.State.state() == Trying && t.State.find(branch) != nil {
			if err = m.expire(ctx, t, reason); err == nil {
				continue
			}
		}
		if err == nil {
			return t.State.decisionFor(branch), nil
		}
		if !errors.Is(err, ErrNone) {
			return "", err
		}
		err = m.coordinator.Begin(ctx, id, unknown, decided(Cancel, reason, nil)...)
		if err == nil {
			m.decided(id, unknown, Cancel, reason)
			return Cancel, nil
		}
		if !errors.Is(err, journal.ErrExists) {
			return "", err
		}
	}
}

func (m *Engine) decided(id, kind string, d Decision, reason string) {
	coordinator.Emit(m.options.Hooks.Decided, observe.TCCDecided{Transaction: id, Type: name(kind), Decision: string(d), Reason: reason})
}

// An Operator changes transactions by hand. It needs no resources, and owns no shard: the owner of
// the shard finds its records. It is safe for concurrent use.
//
// A change that the transaction's state does not allow is a [*StateError], and an id without
// a transaction an [ErrNone]; both are Definite. After an Uncertain error look whether the change is
// recorded.
type Operator struct{ journal *journal.Journal }

// NewOperator returns an operator on a journal, and does not close it.
func NewOperator(j *journal.Journal) *Operator { return &Operator{j} }

// Operator returns an operator on the engine's journal.
func (m *Engine) Operator() *Operator { return NewOperator(m.coordinator.Journal()) }

// List yields the transactions that match the filter, in the order of their ids; see
// [coordinator.Records.List].
func (o *Operator) List(ctx context.Context, f Filter) iter.Seq2[Outcome, error] {
	return records.List(ctx, o.journal, f)
}

// Retry makes the owner call a dead branch again, or all dead branches if branch is empty. A branch
// that waits for its next call is called now.
func (o *Operator) Retry(ctx context.Context, id, branch string, by By) error {
	return o.act(ctx, "retry", id, branch, by, coordinator.Record(recordRetry, branch, by))
}

// Skip records that an operator has settled a branch by hand. It is not called again.
func (o *Operator) Skip(ctx context.Context, id, branch string, by By) error {
	if branch == "" {
		return failure.Bug("skip", id, "no branch is named")
	}
	return o.act(ctx, "skip", id, branch, by, coordinator.Record(recordSkip, branch, by))
}

// Resolve ends a dead letter without further calls.
func (o *Operator) Resolve(ctx context.Context, id string, by By) error {
	return o.act(ctx, "resolve", id, "", by, coordinator.Record(recordResolved, "", by), journal.Entry{Kind: recordEnd})
}

func (o *Operator) act(ctx context.Context, op, id, branch string, by By, entries ...journal.Entry) error {
	if err := by.Check(op, id); err != nil {
		return err
	}
	return records.Change(ctx, o.journal, op, id, branch, func(coordinator.Transaction[machine]) ([]journal.Entry, error) {
		return entries, nil
	})
}

// Finding is a branch that contradicts the journal. Want is the decision; see
// [coordinator.Finding].
type Finding = coordinator.Finding

// Reconcile repeats the last call of each branch, under the same key. It does so for transactions
// that ended at or after a time of the store's clock, in the order of their ids. A resource that
// has executed the call answers as before and changes nothing. One that has lost it, such as by a
// restored backup, executes it again or rejects it. Rejections and unknown outcomes are yielded.
// An error without an ID ends the iteration. Branches that an operator has resolved or skipped are
// left out. Keep since within the time for which resources store calls: a day suits the defaults
// of [coordinator.Retention].
func (m *Engine) Reconcile(ctx context.Context, since time.Time) iter.Seq2[Finding, error] {
	return records.Reconcile(ctx, m.coordinator.Journal(), since, m.recheck)
}

// recheck repeats the last calls of a transaction.
func (m *Engine) recheck(ctx context.Context, t coordinator.Transaction[machine]) (all []Finding, _ error) {
	of := t.State
	if of.state() != Confirmed && of.state() != Cancelled {
		return nil, nil
	}
	begun := t.Entries[0].Written.Truncate(time.Millisecond)
	for _, b := range of.members {
		if b.fate != settled {
			continue
		}
		if err := m.repeat(ctx, t.Head.Transaction, begun, of.decision, b); err != nil {
			class, _ := branch.ClassOf(err)
			all = append(all, Finding{Step: b.name, Want: coordinator.Effect(of.decision), Got: coordinator.EffectUnknown, Refused: class == branch.ClassFail, Err: err})
		}
	}
	return all, nil
}

// repeat repeats the last call of a branch.
func (m *Engine) repeat(ctx context.Context, id string, begun time.Time, d Decision, b member) error {
	h, ok := m.handles[b.resource]
	if !ok {
		return fmt.Errorf("the engine has no resource %q: add it", b.resource)
	}
	do, op := h.confirm, branch.Confirm
	if d == Cancel {
		do, op = h.cancel, branch.Cancel
	}
	ctx, end := coordinator.WithTimeout(ctx, m.options.Timeout)
	defer end()
	c := branch.Call{Transaction: id, Branch: b.name, Operation: op, Attempt: 1, Begun: begun}
	c.Deadline, _ = ctx.Deadline()
	return coordinator.Call(branch.With(ctx, c), func(ctx context.Context) error { return do(ctx, b.request, b.hold) })
}

// reconciles registers the reconciliation, which runs in the background only if the coordinator's options
// enable it.
func (m *Engine) reconciles() coordinator.Reconciler {
	hooks := m.options.Hooks
	return coordinator.Reconciler{Protocol: protocol, Find: m.Reconcile, Done: hooks.Reconciled, Found: func(f Finding) {
		coordinator.Emit(hooks.Mismatched, observe.TCCMismatched{Transaction: f.ID, Type: f.Type, Branch: f.Step, Decision: string(f.Want), Refused: f.Refused, Err: f.Err})
	}}
}
