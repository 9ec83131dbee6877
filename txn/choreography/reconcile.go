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

// A Policy says what [Tracker.Reconcile] does. The zero value emits events again, and never cancels
// a saga.
type Policy struct {
	// Repeats is how often events of a stalled saga are emitted again, with a pause of
	// [Definition].Stalled each time, before the saga is cancelled or reported. 0 means
	// [DefaultRepeats], below zero never.
	Repeats int
	// Cancel cancels a running saga that is stalled after that, and a contradictory one at once,
	// so that all services undo it. The cancellation is emitted up to Repeats times. A saga whose
	// pivot is done is never cancelled.
	Cancel bool
	// Limit is how many sagas one call handles at most; 0 means 100.
	Limit int
}

func (p Policy) repeats() int { return max(0, cmp.Or(p.Repeats, DefaultRepeats)) }

// A Reconciled is a saga as it was found, and what was done about it.
type Reconciled struct {
	Saga
	Action Action
}

// Reconcile finds sagas that are stalled or contradictory, adds events to the tracker's outbox
// as the policy says, and returns what it did, all in the user's transaction db. A saga is found
// again after a pause of [Definition].Stalled, until a new event comes or it is [Reported]; a new
// event begins the count of attempts again, of which a saga has a bounded number.
//
// Call it at regular intervals, in any number of processes: they leave each other's sagas alone. It takes three
// statements for each saga, one more for all, and those of outbox.Table.Add.
func (t Tracker) Reconcile(ctx context.Context, db driver.SQL, p Policy) (all []Reconciled, err error) {
	q, err := t.open("reconcile choreographed sagas", db)
	if err != nil {
		return nil, err
	}
	if p.Limit < 0 {
		return nil, q.Bug("the limit %d is negative", p.Limit)
	}
	// It looks without locks, and locks by key: a lock by time would keep new sagas out on MariaDB.
	ids, err := sqltable.Column[string](ctx, q, `select id from {sagas} where definition = ? and due <= {micros now} order by due limit {pg ?::bigint}{maria ?}`,
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

// reconcile handles one saga, and returns what is to be emitted.
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
