package choreography

import (
	"cmp"
	"context"
	"slices"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// DefaultRepeats is the default of [Policy].Repeats.
const DefaultRepeats = 3

// A Policy configures [Tracker.Reconcile]. The zero value emits events again and never cancels.
type Policy struct {
	// Repeats is the number of times that a stalled saga's events are emitted again, at
	// intervals of [Definition].Stalled, before the saga is cancelled or reported. 0 means
	// [DefaultRepeats]; a negative number means none.
	Repeats int
	// Cancel cancels a running saga that is still stalled after that, and a contradictory one at
	// once: all services undo it. The cancellation is emitted up to Repeats times. A saga whose
	// pivot is done is never cancelled.
	Cancel bool
	// Limit is the maximum number of sagas of one call; 0 means 100.
	Limit int
}

func (p Policy) repeats() int { return max(0, cmp.Or(p.Repeats, DefaultRepeats)) }

// A Reconciled is a saga as Reconcile found it, and the action.
type Reconciled struct {
	Saga
	Action Action
}

// Reconcile finds stalled and contradictory sagas, adds events to the tracker's outbox by the
// policy, and returns the actions, all in the user's transaction db. It finds a saga again after
// [Definition].Stalled, until a new event arrives or the saga is [Reported]. The number of attempts
// for a saga is bounded; a new event resets it.
//
// Call it at regular intervals, in any number of processes: each skips sagas that another has
// locked. It takes three statements for each saga, one for all, and those of outbox.Table.Add.
func (t Tracker) Reconcile(ctx context.Context, db driver.SQL, p Policy) (all []Reconciled, err error) {
	q, err := t.open("reconcile choreographed sagas", db)
	if err != nil {
		return nil, err
	}
	if p.Limit < 0 {
		return nil, q.Bug("the limit %d is negative", p.Limit)
	}
	// The select takes no locks, and each saga is locked by key: a lock by time would block new sagas on MariaDB.
	ids, err := sqltable.Column[string](ctx, q, `select id from {sagas} where definition = ? and due <= {micros start} order by due limit {pg ?::bigint}{maria ?}`,
		t.Definition.Name, cmp.Or(p.Limit, 100))
	if err != nil {
		return nil, err
	}
	var messages []driver.Message
	for _, id := range ids {
		r, found, err := t.lock(ctx, q, id, true)
		if err != nil {
			return nil, err
		}
		if !found || r.due > r.now {
			continue
		}
		done, emitted, err := t.reconcile(ctx, q, r, p)
		if err != nil {
			return nil, err
		}
		all, messages = append(all, done), append(messages, emitted...)
	}
	return all, t.Outbox.Add(ctx, db, messages...)
}

// reconcile handles one saga, and returns the messages to emit.
func (t Tracker) reconcile(ctx context.Context, q sqltable.Tables, r row, p Policy) (done Reconciled, messages []driver.Message, err error) {
	done = Reconciled{Saga: r.saga(), Action: decide(t.Definition, &r.facts, r.state, r.attempts, p)}
	if done.Action == Reported {
		r.due, done.Reported = never, true
		return done, nil, r.write(ctx, q)
	}
	names := r.facts.emitted(t.Definition, r.state, done.Action)
	events, err := t.events(ctx, q, r.id)
	if err != nil {
		return done, nil, err
	}
	for _, e := range events {
		if slices.Contains(names, e.Name) {
			messages = append(messages, t.Definition.Message(e.Event))
		}
	}
	if done.Action == Cancelled && len(events) > 0 {
		e := Event{Saga: r.id, Name: t.Definition.Cancelled, Begun: events[0].Begun, Headers: events[0].Headers, Cause: t.Definition.ID(events[len(events)-1].Event)}
		messages = append(messages, t.Definition.Message(e))
	}
	r.attempts, r.due = r.attempts+1, r.now+t.Definition.stalled().Microseconds()
	return done, messages, r.write(ctx, q)
}
