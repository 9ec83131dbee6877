package tcc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// drive executes one decided transaction under a turn.
type drive struct {
	*coordinator.Turn
	engine *Engine
	m      machine
	calls  map[string]*calls
}

// calls are those of one branch.
type calls struct {
	made int
	settleAttempts
	at    time.Time // not before
	timed bool      // the target asks for it
	log   coordinator.FailureLog
}

// Drive executes a decision as far as possible; see [coordinator.Protocol].
func (m *Engine) Drive(t *coordinator.Turn) error {
	recorded, err := replay(t.Entries())
	if err != nil {
		return bug("drive transaction", t.ID(), err)
	}
	d := &drive{Turn: t, engine: m, m: recorded, calls: map[string]*calls{}}
	if recorded.state() == Trying {
		if decided, err := d.expire(); !decided || err != nil {
			return err
		}
	}
	if recorded.state() == DeadLetter {
		if !t.Due() {
			return nil
		}
		return d.append([]journal.Entry{{Kind: recordRemind}})
	}
	if d.TakenOver() && len(d.callable()) > 0 {
		if err := d.countTakeOver(); err != nil {
			return err
		}
	}
	for d.m.has(pending) && d.m.halted == "" {
		if err := d.round(); err != nil {
			return d.handOver(err)
		}
	}
	if d.m.state().Final() {
		return nil
	}
	return d.append([]journal.Entry{{Kind: recordEnd}})
}

// round waits until the next call is due, makes all due calls, and records their results. The wait is in
// memory, because a new owner would not know of it.
func (d *drive) round() error {
	members := d.callable()
	if len(members) == 0 {
		return d.unknownResources()
	}
	next := slices.MinFunc(members, func(a, b member) int { return d.callsOf(a).at.Compare(d.callsOf(b).at) })
	if wait := d.callsOf(next).at.Sub(d.Now()); wait > 0 {
		d.wait(wait, members)
	}
	now := d.Now()
	members = slices.DeleteFunc(members, func(b member) bool { return d.callsOf(b).at.After(now) })
	return d.settle(members)
}

// callable returns the branches to call whose resources this engine has.
func (d *drive) callable() (members []member) {
	for _, b := range d.m.members {
		if _, ok := d.engine.handles[b.resource]; ok && b.fate == pending {
			members = append(members, b)
		}
	}
	return members
}

// callsOf returns the calls of a branch.
func (d *drive) callsOf(b member) *calls {
	if d.calls[b.name] == nil {
		d.calls[b.name] = &calls{settleAttempts: settleAttempts{attempts: b.attempts}}
	}
	return d.calls[b.name]
}

// wait waits until the next call is due, or until a failing target answers again: then its branches are
// called, except those for which it asks for a time.
func (d *drive) wait(wait time.Duration, members []member) {
	var targets []string
	for _, b := range members {
		targets = append(targets, d.engine.handles[b.resource].serves(b.request))
	}
	due := d.Now().Add(wait)
	d.Pause(wait, targets...)
	if d.Now().Before(due) {
		for _, b := range members {
			if c := d.callsOf(b); !c.timed {
				c.at = time.Time{}
			}
		}
	}
}

// serves returns the target of a request.
func (h handle) serves(request []byte) string {
	if h.target == nil {
		return h.name
	}
	return h.target(request)
}

// unknownResources returns an error if this engine has none of the resources of the remaining calls.
func (d *drive) unknownResources() error {
	for _, b := range d.m.members {
		if b.fate == pending {
			return &MismatchError{ID: d.ID(), Problem: fmt.Sprintf("branch %q is of the resource %q, and the engine was made without it: add it", b.name, b.resource)}
		}
	}
	return nil
}

// settle calls branches, and records the results.
func (d *drive) settle(members []member) error {
	var tasks []coordinator.Task
	for _, b := range members {
		d.callsOf(b).made++
		tasks = append(tasks, d.task(b))
	}
	var entries []journal.Entry
	for i, err := range d.Round(tasks...) {
		entries = append(entries, d.recordsFor(members[i], err)...)
	}
	m, err := d.m.with(entries...)
	if err != nil {
		return bug("drive transaction", d.ID(), err)
	}
	if !m.has(pending) && !m.has(dead) {
		entries = append(entries, journal.Entry{Kind: recordEnd})
	}
	if len(entries) > 0 {
		if err := d.append(entries); err != nil {
			return err
		}
	}
	return d.Holds()
}

// task returns the call that the decision requires for one branch.
func (d *drive) task(b member) coordinator.Task {
	h, op := d.engine.handles[b.resource], branch.Confirm
	do := h.confirm
	if d.m.decision == Cancel {
		op, do = branch.Cancel, h.cancel
	}
	return coordinator.Task{Target: h.serves(b.request), Timeout: d.engine.options.Timeout,
		Call: branch.Call{Transaction: d.ID(), Branch: b.name, Operation: op, Attempt: d.callsOf(b).made},
		Do:   func(ctx context.Context) error { return do(ctx, b.request, b.hold) }}
}

// recordsFor returns the records for the result of a call. A failed call is repeated.
func (d *drive) recordsFor(b member, err error) []journal.Entry {
	if err == nil {
		kind := recordDone
		if d.m.decision == Cancel {
			kind = recordUndone
		}
		return []journal.Entry{{Kind: kind, Step: b.name}}
	}
	if d.Holds() != nil { // it was not called, or got the call that it must end
		return nil
	}
	policy, c := d.engine.options.Retry, d.callsOf(b)
	class, after := branch.ClassOf(err)
	v := c.judge(policy, class)
	wait := coordinator.Delay(policy.First, policy.Max, class, after, c.attempts, d.Random())
	c.at, c.timed = d.Now().Add(wait), after > 0
	e := observe.TCCTried{Branch: b.name, Operation: string(d.m.decision), Attempt: c.made, Err: err, Again: wait}
	if v == markDead {
		e.Again = 0
	}
	d.engine.tried(d.ID(), d.Head().Type, e)
	if v == markDead {
		return []journal.Entry{record(recordDead, b.name, why{Error: truncated(err), Attempts: c.attempts})}
	}
	return d.failing(b, err)
}

// append appends records, and acts on them once they are durable.
func (d *drive) append(entries []journal.Entry) error {
	m, err := d.m.with(entries...)
	switch {
	case err != nil:
		return bug("drive transaction", d.ID(), err)
	case m.ended:
		err = d.End(entries...)
	case m.state() == DeadLetter:
		err = d.Append(d.Now().Add(d.engine.options.Remind), entries...)
	default:
		err = d.Append(time.Time{}, entries...)
	}
	if err != nil {
		return err
	}
	d.m = m
	d.announce()
	return nil
}

// announce calls the hooks for an end, and repeatedly for a dead letter.
func (d *drive) announce() {
	hooks, o := d.engine.options.Hooks, d.m.outcome(d.Head())
	if o.State == DeadLetter {
		e := observe.TCCDead{Transaction: o.ID, Type: o.Type, Decision: string(o.Decision), Halted: o.Halted}
		for _, b := range o.Dead {
			e.Branches = append(e.Branches, b.Step)
		}
		coordinator.Emit(hooks.Dead, e)
	}
	if o.State.Ended() {
		coordinator.Emit(hooks.Ended, observe.TCCEnded{Transaction: o.ID, Type: o.Type, State: string(o.State)})
	}
}

// A call that crashes its process will crash the next owner's process too. So take-overs are
// counted in the journal before any call, and any answer ends the count.

// recordFailure applies a failed call, a take-over or a halt.
func (m *machine) recordFailure(e journal.Entry) error {
	var w why
	if e.Kind != recordTaken {
		if err := json.Unmarshal(e.Data, &w); err != nil {
			return err
		}
	}
	b := m.find(e.Step)
	switch {
	case m.by != nil || !m.has(pending), e.Kind == recordFailing && (b == nil || b.fate != pending):
		return errOrder
	case e.Kind == recordTaken:
		m.takeOvers++
	case e.Kind == recordHalted:
		m.halted = w.Error
	default:
		b.err, b.attempts = w.Error, w.Attempts
	}
	return nil
}

// countTakeOver counts a take-over, and halts the transaction after too many. The decision stands.
func (d *drive) countTakeOver() error {
	n := d.m.takeOvers + 1
	if !d.Exhausted(n) {
		return d.append([]journal.Entry{{Kind: recordTaken}})
	}
	reason := fmt.Sprintf("it was taken over %d times in a row while branches were called, and no call was answered: its process seems to crash each time", n)
	return d.append([]journal.Entry{record(recordHalted, "", why{Error: reason})})
}

// handOver records that an owner which stops has not crashed, which ends the count of take-overs.
func (d *drive) handOver(err error) error {
	if members := d.callable(); len(members) > 0 && d.m.takeOvers > 0 && d.HandsOver() {
		b := members[0]
		err = errors.Join(err, d.append([]journal.Entry{record(recordFailing, b.name, why{Error: b.err, Attempts: b.attempts})}))
	}
	return err
}

// failing returns the record of a failed call, if one is due.
func (d *drive) failing(b member, err error) []journal.Entry {
	c := d.callsOf(b)
	if !c.log.Records(c.attempts, d.m.takeOvers, d.Now()) {
		return nil
	}
	return []journal.Entry{record(recordFailing, b.name, why{Error: coordinator.Truncate(err.Error(), coordinator.MaxFailing), Attempts: c.attempts})}
}
