package choreography

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// A Saga is the tracker's view of a saga. All times except Begun are the database's clock.
type Saga struct {
	Definition string // its name
	ID         string
	State      State
	Reason     string    // of a contradiction
	Events     []string  // names of events that happened: observed, or the cause of an observed one
	Begun      time.Time // from the events
	Progressed time.Time // when the last new event was observed
	Stalled    bool      // unfinished, and without a new event for [Definition].Stalled
	Attempts   int       // number of times that [Tracker.Reconcile] emitted events after the last new one
	Reported   bool      // Reconcile gave up: an operator must decide
}

// A Filter chooses sagas. The zero value chooses the first hundred.
type Filter struct {
	ID       string        // if not empty
	State    State         // if not empty
	Stalled  bool          // only stalled ones
	Reported bool          // only those that wait for an operator
	Idle     time.Duration // only those without a new event for this time
	After    string        // only those with a greater id; needs a Definition
	Limit    int           // the maximum number; 0 means 100
}

// List returns sagas in the order of their ids. A Tracker without a Definition lists those of all
// definitions, in the order of their names; After is then a Bug, and so is a negative limit.
func (t Tracker) List(ctx context.Context, db driver.SQL, f Filter) ([]Saga, error) {
	q, err := layout.Open("list choreographed sagas", "", db, t.Name)
	if err != nil {
		return nil, err
	}
	if f.Limit < 0 {
		return nil, q.Bug("the limit %d is negative", f.Limit)
	}
	if f.After != "" && t.Definition == nil {
		return nil, q.Bug("ids are in order within a definition: choose one to list those after %q", f.After)
	}
	where, args := ` where 1 = 1`, []any{}
	only := func(asked bool, condition string, values ...any) {
		if asked {
			where, args = where+` and `+condition, append(args, values...)
		}
	}
	if t.Definition != nil {
		only(true, `definition = ?`, t.Definition.Name)
	}
	only(f.ID != "", `id = ?`, f.ID)
	only(f.After != "", `id > ?`, f.After)
	only(f.State != "", `state = ?`, string(f.State))
	only(f.Stalled, `stalled <= {micros start}`)
	only(f.Reported, `due = ? and stalled < ?`, never, never)
	only(f.Idle > 0, `progressed <= {micros start} - {pg ?::bigint}{maria ?}`, f.Idle.Microseconds())
	rows, err := sqltable.List(ctx, q, `select `+columns+` from {sagas}`+where+` order by definition, id limit {pg ?::bigint}{maria ?}`,
		append(args, cmp.Or(f.Limit, 100)), (*row).fields)
	var all []Saga
	for _, r := range rows {
		if err == nil {
			err = r.decode(q)
		}
		all = append(all, r.saga())
	}
	return all, err
}

func (r row) saga() Saga {
	return Saga{Definition: r.name, ID: r.id, State: r.state, Reason: r.reason, Events: slices.Sorted(maps.Keys(r.facts.Sums)), Attempts: r.attempts,
		Begun: time.UnixMilli(r.begun), Progressed: time.UnixMicro(r.progressed), Stalled: r.now >= r.stalled, Reported: r.due == never && r.stalled < never}
}

// An Observed is an event with the time at which the tracker observed it, by the clock of the database.
type Observed struct {
	Event
	At time.Time
}

// Events returns the definition's events of a saga in the order in which they were first observed.
// It returns none if the saga is unknown.
func (t Tracker) Events(ctx context.Context, db driver.SQL, saga string) ([]Observed, error) {
	q, err := t.open("list events", db)
	if err != nil {
		return nil, err
	}
	return t.events(ctx, q, saga)
}

func (t Tracker) events(ctx context.Context, q sqltable.Tables, saga string) (all []Observed, err error) {
	err = q.Each(ctx, `select e.event, e.cause, e.headers, e.payload, e.observed, s.begun from {events} e join {sagas} s on s.definition = e.definition and s.id = e.id
where e.definition = ? and e.id = ? order by e.observed, e.event`, []any{t.Definition.Name, saga}, func(scan func(...any) error) error {
		e, headers, observed, begun := Event{Saga: saga}, "", int64(0), int64(0)
		if err := scan(&e.Name, &e.Cause, &headers, &e.Payload, &observed, &begun); err != nil {
			return err
		}
		e.Begun = time.UnixMilli(begun)
		all = append(all, Observed{e, time.UnixMicro(observed)})
		return json.Unmarshal([]byte(headers), &all[len(all)-1].Headers)
	})
	return all, err
}

// Forget deletes up to limit finished sagas without a new event for age, and returns their number.
// The age must exceed the maximum delay of a message: a later event creates its saga in the table
// again, and [Tracker.Reconcile] then finds it stalled. A limit or an age that is not positive is
// a Bug.
func (t Tracker) Forget(ctx context.Context, db driver.SQL, age time.Duration, limit int) (deleted int, err error) {
	q, err := t.open("forget choreographed sagas", db)
	if err != nil {
		return 0, err
	}
	if age <= 0 || limit <= 0 {
		return 0, q.Bug("the age %v or the limit %d is not positive", age, limit)
	}
	const old = `state in ('completed', 'compensated') and progressed <= {micros start} - {pg ?::bigint}{maria ?}`
	ids, err := sqltable.Column[string](ctx, q, `select id from {sagas} where definition = ? and `+old+` limit {pg ?::bigint}{maria ?}`, t.Definition.Name, age.Microseconds(), limit)
	for _, id := range ids {
		if err != nil {
			break
		}
		var n int64
		n, err = q.Exec(ctx, `delete from {sagas} where definition = ? and id = ? and `+old, t.Definition.Name, id, age.Microseconds())
		if err == nil && n == 1 {
			deleted++
			_, err = q.Exec(ctx, `delete from {events} where definition = ? and id = ?`, t.Definition.Name, id)
		}
	}
	return deleted, err
}

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
