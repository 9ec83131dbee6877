package limit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Table keeps limits in a database, PostgreSQL or MariaDB. Call [Table.Create] once; the zero value
// works.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_limit". It has at most 50 bytes and is
	// not escaped: never take it from a request.
	Name string
	// Prefix precedes every key, so that several programs can share a table. A key with its prefix
	// has at most 255 bytes.
	Prefix string
}

var layout = sqltable.Layout{Part: "limit", Default: "interlock_limit", Tables: map[string]string{"limits": ""}}

// Create creates the table unless it exists. Several processes may call it at the same time. It takes
// effect when the transaction commits; on MariaDB at once, where it also commits the transaction's
// earlier statements.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	q, err := layout.Open("create limits", "", db, t.Name)
	if err != nil {
		return err
	}
	// No index has the columns that change, so PostgreSQL can use heap-only tuples (HOT).
	return q.Create(ctx, `create table if not exists {limits} (
		name {name 255} not null primary key,
		state {text} not null,
		until_us bigint not null){engine}{pg  with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000)}`)
}

// FromTable returns the limits of a table. One transaction locks the rows of a request in the
// order of their keys. It decides the calls by [driver.Decide] and the clock of the database.
func FromTable[T any](db driver.BeginnerAt[T], t Table) driver.Limiter {
	return &inTable{db: backend.Untyped(db), table: t}
}

type inTable struct {
	db      driver.BeginnerAt[driver.SQL]
	table   Table
	trimmed trimming
}

const maxRows = 256 // limits that one transaction locks

// Take decides calls; see [driver.Limiter].
func (t *inTable) Take(ctx context.Context, calls []driver.LimitCall) []driver.LimitAnswer {
	answers := make([]driver.LimitAnswer, len(calls))
	r := newRequest()
	for i, call := range calls {
		call = t.prefixed(call)
		if answers[i].Err = call.Check(); answers[i].Err != nil {
			continue
		}
		if len(r.states)+len(call) > maxRows {
			t.run(ctx, r, answers)
			r = newRequest()
		}
		r.add(i, call)
	}
	t.run(ctx, r, answers)
	return answers
}

// prefixed returns the call with the keys of the table.
func (t *inTable) prefixed(call driver.LimitCall) driver.LimitCall {
	if t.table.Prefix == "" {
		return call
	}
	call = slices.Clone(call)
	for i := range call {
		if call[i].Key != "" {
			call[i].Key = t.table.Prefix + call[i].Key
		}
	}
	return call
}

// request is the calls of one transaction.
type request struct {
	calls   []driver.LimitCall
	places  []int // of the calls in Take
	states  map[string]driver.LimitState
	damaged map[string]string // invalid states
	now     int64             // by the clock of the database
}

func newRequest() *request {
	return &request{states: map[string]driver.LimitState{}, damaged: map[string]string{}}
}

func (r *request) add(place int, call driver.LimitCall) {
	r.calls, r.places = append(r.calls, call), append(r.places, place)
	for _, c := range call {
		r.states[c.Key] = nil
	}
}

// name returns the key for errors of the whole request.
func (r *request) name() string { return r.calls[0][0].Key }

func (r *request) keys() []string { return slices.Sorted(maps.Keys(r.states)) }

// run decides the calls of a request. It creates missing rows in a transaction of their own, so that
// locks are always in the order of keys.
func (t *inTable) run(ctx context.Context, r *request, answers []driver.LimitAnswer) {
	if len(r.calls) == 0 {
		return
	}
	var missing []string
	decided, err := []driver.LimitAnswer(nil), error(nil)
	for try := 0; try < 3 && err == nil && decided == nil; try++ {
		if len(missing) > 0 {
			err = t.do(ctx, r.name(), func(q sqltable.Tables) error { return create(ctx, q, missing) })
		}
		if err == nil {
			err = t.do(ctx, r.name(), func(q sqltable.Tables) (err error) {
				decided = nil
				if missing, err = r.lock(ctx, q); err != nil || len(missing) > 0 {
					return cmp.Or(err, transact.ErrNothing)
				}
				decided, err = r.decide(ctx, q)
				return err
			})
		}
	}
	if err == nil && decided == nil {
		err = &interlock.Error{Op: "limit", Name: r.name(), Kind: interlock.Retryable, Err: fmt.Errorf("the rows of %d limits are deleted as fast as they are created", len(missing))}
	}
	for i, place := range r.places {
		if answers[place].Err = err; err == nil {
			answers[place] = decided[i]
		}
	}
	if err == nil {
		t.trim(ctx, r)
	}
}

// maxIdle is how long a process that is stopped in a transaction keeps its rows locked. The database then
// ends its session.
const maxIdle = 2 * time.Second

func (t *inTable) do(ctx context.Context, name string, work func(q sqltable.Tables) error) error {
	return transact.Do(ctx, transact.At(t.db, driver.ReadCommitted), name, func(tx driver.Tx[driver.SQL]) error {
		q, err := layout.Open("limit", name, tx, t.table.Name)
		if err == nil {
			err = tx.Bound(ctx, maxIdle, 0)
		}
		if err != nil {
			return err
		}
		return work(q)
	})
}

// places returns n placeholders of a list.
func places(n int, one string) string { return strings.Repeat(one+`, `, n-1) + one }

// create inserts rows that trim does not delete for a minute.
func create(ctx context.Context, q sqltable.Tables, keys []string) error {
	_, err := q.Exec(ctx, `insert into {limits} (name, state, until_us) values `+places(len(keys), `(?, {empty}, {micros start} + 60000000)`)+` {leave name}`, anys(keys)...)
	return err
}

func anys(keys []string) (all []any) {
	for _, k := range keys {
		all = append(all, k)
	}
	return all
}

// longWait is the wait for rows after which the clock is read again. It is less than the second by which
// [driver.Decide] accepts that clock readings go back.
const longWait = 500 * time.Millisecond

// lock locks the rows and reads them, and the clock. It returns the keys without a row.
func (r *request) lock(ctx context.Context, q sqltable.Tables) (missing []string, err error) {
	keys, found, begun := r.keys(), map[string]bool{}, boottime.Now()
	err = q.Each(ctx, `select name, state, {micros now} from {limits} where name in (`+places(len(keys), `?`)+`) order by name for update`, anys(keys),
		func(scan func(...any) error) error {
			var name, text string
			var now int64
			if err := scan(&name, &text, &now); err != nil {
				return err
			}
			found[name], r.now = true, max(r.now, now)
			state, ok := driver.ParseLimitState(text)
			if r.states[name] = state; !ok {
				r.damaged[name] = text
			}
			return nil
		})
	for _, k := range keys {
		if !found[k] {
			missing = append(missing, k)
		}
	}
	if err == nil && boottime.Now().Sub(begun) > longWait { // MariaDB reads the clock when a statement begins
		_, err = q.Row(ctx, `select {micros now}`, nil, &r.now)
	}
	return missing, err
}

// decide decides the calls in order, and writes the states that have changed.
func (r *request) decide(ctx context.Context, q sqltable.Tables) (decided []driver.LimitAnswer, err error) {
	until := map[string]int64{}
	for _, call := range r.calls {
		if err := r.check(call); err != nil {
			decided = append(decided, driver.LimitAnswer{Err: err})
			continue
		}
		states := make([]driver.LimitState, len(call))
		for i, c := range call {
			states[i] = r.states[c.Key]
		}
		a := driver.Decide(r.now, call, states)
		for i, c := range call {
			if !slices.Equal(states[i], r.states[c.Key]) {
				r.states[c.Key], until[c.Key] = states[i], r.now+a.Decisions[i].ResetAfter.Microseconds()
			}
		}
		decided = append(decided, a)
	}
	var args []any
	for _, key := range r.keys() {
		if at, ok := until[key]; ok {
			args = append(args, key, r.states[key].Text(), at)
		}
	}
	if len(args) == 0 {
		return decided, nil
	}
	_, err = q.Exec(ctx, `insert into {limits} (name, state, until_us) values `+places(len(args)/3, `(?, ?, {pg ?::bigint}{maria ?})`)+
		` {or name} state = {new state}, until_us = {new until_us}`, args...)
	return decided, err
}

// check returns an error if the row of a key of the call is damaged.
func (r *request) check(call driver.LimitCall) error {
	for _, c := range call {
		if text, ok := r.damaged[c.Key]; ok {
			return driver.DamagedLimit(c.Key, "its row in the table", strconv.Quote(text))
		}
	}
	return nil
}

// How many rows are examined at once, how long after their end they are deleted, and the pauses between
// two batches and two passes.
const (
	trimRows  = 1000
	trimAge   = 10 * time.Second
	trimPause = time.Second
	trimRest  = time.Minute
)

// trimming is the position in a pass over the table.
type trimming struct {
	sync.Mutex
	due   boottime.Instant // zero before the first request
	after string           // the last row that was examined
}

// trim examines the next rows of the table and deletes expired ones, so that what a request waits for it
// does not depend on the size of the table. After an error it tries again later.
func (t *inTable) trim(ctx context.Context, r *request) {
	if !t.trimmed.TryLock() {
		return
	}
	defer t.trimmed.Unlock()
	now := boottime.Now()
	if now.Sub(t.trimmed.due) < 0 {
		return
	}
	if t.trimmed.due == 0 {
		t.trimmed.due = now.Add(trimRest)
		return
	}
	t.trimmed.due = now.Add(trimPause)
	last := ""
	err := t.do(ctx, r.name(), func(q sqltable.Tables) error {
		names, err := sqltable.Column[string](ctx, q, `select name from {limits} where name > {?} order by name limit ?`, t.trimmed.after, trimRows)
		if err != nil || len(names) == 0 {
			return err
		}
		to := names[len(names)-1]
		if len(names) == trimRows {
			last = to
		}
		_, err = q.Delete(ctx, sqltable.Deletion{Table: "limits", Key: "name", Where: `name > {?} and name <= ? and until_us < ?`,
			Args: []any{t.trimmed.after, to, r.now - trimAge.Microseconds()}, Limit: trimRows})
		return err
	})
	if err != nil {
		return
	}
	if t.trimmed.after = last; last == "" { // the pass has ended
		t.trimmed.due = now.Add(trimRest)
	}
}

var _ driver.LimitInspector = (*inTable)(nil)

// Limits lists keys; see [driver.LimitInspector].
func (t *inTable) Limits(ctx context.Context, prefix string, limit int) (all []driver.StoredLimit, more bool, err error) {
	prefix = t.table.Prefix + prefix
	err = t.do(ctx, prefix, func(q sqltable.Tables) (err error) {
		all, err = t.list(ctx, q, `name >= {?} and until_us > {micros now} order by name limit ?`, prefix, min(limit, math.MaxInt-1)+1)
		return err
	})
	for i, s := range all {
		if !strings.HasPrefix(s.Key, prefix) {
			all = all[:i]
			break
		}
		all[i].Key = s.Key[len(t.table.Prefix):]
	}
	return all[:min(len(all), limit)], len(all) > limit, err
}

// Limit returns one key.
func (t *inTable) Limit(ctx context.Context, key string) (s driver.StoredLimit, err error) {
	err = t.do(ctx, key, func(q sqltable.Tables) error {
		all, err := t.list(ctx, q, `name = ?`, t.table.Prefix+key)
		if len(all) > 0 {
			s = all[0]
		}
		return err
	})
	s.Key = key
	return s, err
}

// list reads rows.
func (t *inTable) list(ctx context.Context, q sqltable.Tables, where string, args ...any) (all []driver.StoredLimit, err error) {
	err = q.Each(ctx, `select name, state, until_us - {micros now} from {limits} where `+where, args, func(scan func(...any) error) error {
		var s driver.StoredLimit
		var text string
		var left int64
		if err := scan(&s.Key, &text, &left); err != nil {
			return err
		}
		state, ok := driver.ParseLimitState(text)
		switch {
		case !ok:
			s.Damaged = text
		case left > 0:
			s.State = state
		}
		s.ResetAfter = max(0, time.Duration(left)*time.Microsecond)
		all = append(all, s)
		return nil
	})
	return all, err
}

// Reset deletes a key.
func (t *inTable) Reset(ctx context.Context, key string) (found bool, err error) {
	err = t.do(ctx, key, func(q sqltable.Tables) error {
		n, err := q.Exec(ctx, `delete from {limits} where name = ?`, t.table.Prefix+key)
		found = n > 0
		return err
	})
	return found, err
}
