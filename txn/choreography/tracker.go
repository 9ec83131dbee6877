package choreography

import (
	"context"
	"encoding/json"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// A Tracker keeps the sagas of a definition in a table of PostgreSQL or MariaDB, which trackers of
// other definitions can share. It only reads events: services do not wait for it, and sagas run
// without it. It is safe for concurrent use, each call with its own transaction.
type Tracker struct {
	Definition *Definition
	// Name is the table, or schema.table; empty means "interlock_choreography". It is at most 50
	// bytes, and is trusted: never take it from a request.
	Name   string
	Outbox outbox.Table // [Tracker.Reconcile] adds events to it; in the tracker's database
}

var layout = sqltable.Layout{Part: "choreography", Default: "interlock_choreography",
	Tables: map[string]string{"sagas": "", "events": "_event"}, Indexes: map[string]string{"due": "_due"}}

// open checks the definition and returns the tables.
func (t Tracker) open(op string, db driver.SQL) (sqltable.Tables, error) {
	if err := t.Definition.Validate(); err != nil {
		return sqltable.Tables{}, err
	}
	return layout.Open(op, t.Definition.Name, db, t.Name)
}

// Create creates the tables unless they exist: one of sagas, and one of events with the suffix
// "_event". Several processes may call it at once. It takes effect when the transaction commits.
// On MariaDB it takes effect at once, and commits what the transaction did before. It does not
// create the outbox.
func (t Tracker) Create(ctx context.Context, db driver.SQL) error {
	q, err := layout.Open("create choreography", "", db, t.Name)
	if err != nil {
		return err
	}
	return q.Create(ctx, `create table if not exists {sagas} (
		definition {name 50} not null,
		id {name 200} not null,
		state {word 20} not null,
		facts {text} not null,
		reason {text} not null,
		begun bigint not null,
		progressed bigint not null,
		stalled bigint not null,
		due bigint not null,
		attempts int not null,
		primary key (definition, id){maria , index due (definition, due)}){engine}`,
		`{pg create index if not exists {due} on {sagas} (definition, due)}`,
		`create table if not exists {events} (
		definition {name 50} not null,
		id {name 200} not null,
		event {name 50} not null,
		cause {name 255} not null,
		headers {text} not null,
		payload {bytes} not null,
		observed bigint not null,
		primary key (definition, id, event)){engine}`)
}

// never is the due time of a saga that needs no action.
const never = int64(1) << 62

// row is a saga in the table. Times are in microseconds; begun is in milliseconds.
type row struct {
	name, id          string // of the definition, and of the saga
	state             State
	text              string // the facts as JSON
	facts             facts
	reason            string
	begun, progressed int64
	stalled           int64 // when the saga is stalled; never if it has ended
	due               int64 // when Reconcile reads it
	attempts          int
	now               int64
}

// columns are the columns of fields.
const columns = `definition, id, state, facts, reason, begun, progressed, stalled, due, attempts, {micros now}`

func (r *row) fields() []any {
	return []any{&r.name, &r.id, (*string)(&r.state), &r.text, &r.reason, &r.begun, &r.progressed, &r.stalled, &r.due, &r.attempts, &r.now}
}

// decode reads the facts.
func (r *row) decode(q sqltable.Tables) error {
	if err := json.Unmarshal([]byte(r.text), &r.facts); err != nil {
		return q.Refused(err)
	}
	return nil
}

// lock locks the row of a saga and reads it. With skip, it does not find a locked row.
func (t Tracker) lock(ctx context.Context, q sqltable.Tables, id string, skip bool) (r row, found bool, err error) {
	locking := ` for update`
	if skip {
		locking += ` skip locked`
	}
	found, err = q.Row(ctx, `select `+columns+` from {sagas} where definition = ? and id = ?`+locking,
		[]any{t.Definition.Name, id}, r.fields()...)
	if err == nil && found {
		err = r.decode(q)
	}
	return r, found, err
}

// write stores the saga.
func (r row) write(ctx context.Context, q sqltable.Tables) error {
	text, err := json.Marshal(r.facts)
	if err != nil {
		return q.Bug("its facts cannot be written: %v", err)
	}
	_, err = q.Exec(ctx, `update {sagas} set state = ?, facts = ?, reason = {?}, progressed = ?, stalled = ?, due = ?, attempts = ? where definition = ? and id = ?`,
		string(r.state), string(text), r.reason, r.progressed, r.stalled, r.due, r.attempts, r.name, r.id)
	return err
}

// Observe records the event of a message, in the user's transaction db: for the handler of the
// tracker's own queue, such as queue.InTx. It ignores messages that are not events of the
// definition. A recorded event changes nothing. Observe takes four statements for a new event,
// and two for a repeated one.
func (t Tracker) Observe(ctx context.Context, db driver.SQL, m driver.QueueMessage) error {
	q, err := t.open("observe event", db)
	if err != nil {
		return err
	}
	e, ok := t.Definition.Read(m)
	if !ok {
		return nil
	}
	// The insert also locks an existing row, so that it cannot be deleted before it is read.
	_, err = q.Exec(ctx, `insert into {sagas} {as present} (definition, id, state, facts, reason, begun, progressed, stalled, due, attempts)
values (?, ?, ?, '{}', {empty}, {pg ?::bigint}{maria ?}, {micros now}, {micros now}, {micros now}, 0)
{or definition, id} begun = least({old begun}, {new begun})`, t.Definition.Name, e.Saga, string(Running), e.Begun.UnixMilli())
	if err != nil {
		return err
	}
	r, _, err := t.lock(ctx, q, e.Saga, false)
	if err != nil {
		return err
	}
	fresh, changed := r.facts.note(t.Definition, e)
	if !changed {
		return nil
	}
	if fresh {
		if err := r.insert(ctx, q, e); err != nil {
			return err
		}
	}
	r.state, r.reason = r.facts.judge(t.Definition)
	r.progressed, r.attempts, r.stalled = r.now, 0, r.now+t.Definition.stalled().Microseconds()
	switch r.due = r.stalled; r.state {
	case Completed, Compensated:
		r.due, r.stalled = never, never
	case Contradictory:
		r.due = r.now
	}
	return r.write(ctx, q)
}

// insert stores an event.
func (r row) insert(ctx context.Context, q sqltable.Tables, e Event) error {
	headers, err := json.Marshal(e.Headers)
	if err != nil {
		return q.Bug("its headers cannot be written: %v", err)
	}
	_, err = q.Exec(ctx, `insert into {events} (definition, id, event, cause, headers, payload, observed)
values (?, ?, ?, {?}, ?, {?}, {pg ?::bigint}{maria ?})`, r.name, e.Saga, e.Name, e.Cause, string(headers), append([]byte{}, e.Payload...), r.now) // a nil one would be NULL
	return err
}
