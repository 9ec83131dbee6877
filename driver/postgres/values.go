package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Values keeps small values that a stale token cannot write, one row each. One statement compares the
// token and writes the row. While there are watches, it has one goroutine and one connection for all of
// them; behind a pooler watches read once a second. It is safe for concurrent use.
type Values struct {
	pool    *pgxpool.Pool
	table   string // quoted
	invalid error  // of its name

	mu      sync.Mutex
	watches int
	woken   hints.Waiters
	end     func() // of the listener, while there are watches
}

var _ driver.Values = (*Values)(nil)

// NewValues keeps values in table, "name" or "schema.name", which the first Put creates. The name
// has at most 63 bytes; with another one each call is a Bug. The caller owns the pool. NewValues
// does no I/O.
func NewValues(pool *pgxpool.Pool, table string) *Values {
	v := &Values{pool: pool}
	v.table, v.invalid = sqltable.Identifier(driver.Postgres, table, "")
	return v
}

// Bounds of a request, and of the pause between two reads of a watch.
const (
	valueTimeout = 5 * time.Second
	lookEvery    = time.Second
)

// putValue: name, token, data, source. A conflicting row is always written, with its former
// contents if the token is too low. So the returned token is that of the same instant.
var putValue = `with put as (
	insert into {table} as v (name, token, data, source, written)
	select $1::text, $2::bigint, $3::bytea, $4::text, clock_timestamp()
	where ($2::bigint >> 12) <= ` + clockFloor + ` + $5::bigint
	on conflict (name) do update set token = greatest(v.token, excluded.token),
		data = case when v.token <= excluded.token then excluded.data else v.data end,
		source = case when v.token <= excluded.token then excluded.source else v.source end,
		written = case when v.token <= excluded.token then excluded.written else v.written end
	returning token
)
select token from put where token > $2 or pg_notify('interlock_value', $1) is not null`

// Put stores a value; see driver.Values.
func (v *Values) Put(ctx context.Context, name string, value driver.Value) error {
	if err := fail.CheckNames("put value", name, "-"); err != nil {
		return err
	}
	if err := storable(name, value); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fail.Unsent(ctx, "put value", name)
	}
	args := []any{name, int64(value.Token), append([]byte{}, value.Data...), value.Source, interlock.MaxAhead.Microseconds()}
	stored, err := v.put(ctx, args)
	if isUndefined(err) {
		if err = v.create(ctx); err == nil {
			stored, err = v.put(ctx, args)
		}
	}
	switch {
	case err != nil:
		return ofStatement(ctx, "put value", name, err)
	case stored == 0:
		return problem("put value", name, interlock.Definite, interlock.ErrImplausibleToken)
	case stored > value.Token:
		return &interlock.StaleTokenError{Resource: name, Seen: stored, Got: value.Token}
	}
	return nil
}

func storable(name string, v driver.Value) error {
	var err error
	switch {
	case !v.Token.Valid():
		err = fmt.Errorf("%d is not a token", v.Token)
	case len(v.Data) > driver.MaxValue:
		err = fmt.Errorf("it has %d bytes, at most %d are allowed", len(v.Data), driver.MaxValue)
	default:
		err = driver.CheckText("its source", v.Source, 0, len(v.Source))
	}
	if err == nil {
		return nil
	}
	return problem("put value", name, interlock.Bug, err)
}

// put returns the stored token, or 0 if ours was implausible.
func (v *Values) put(ctx context.Context, args []any) (stored interlock.Token, err error) {
	err = v.row(ctx, putValue, args, &stored)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return stored, err
}

func (v *Values) row(ctx context.Context, text string, args []any, dest ...any) error {
	if v.invalid != nil {
		return v.invalid
	}
	bounded, cancel := context.WithTimeoutCause(ctx, valueTimeout, errNoAnswer)
	defer cancel()
	conn, err := acquire(ctx, bounded, v.pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	return conn.QueryRow(bounded, strings.ReplaceAll(text, "{table}", v.table),
		append([]any{pgx.QueryExecModeExec}, args...)...).Scan(dest...)
}

func (v *Values) create(ctx context.Context) error {
	return alone(ctx, v.pool, DefaultNamespace, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, valuesSchema(v.table), pgx.QueryExecModeExec)
		return err
	})
}

func valuesSchema(table string) string {
	return `create table if not exists ` + table + ` (name text collate "C" primary key,
	token bigint not null, data bytea not null, source text not null, written timestamptz not null)`
}

// Get reads a value; see driver.Values.
func (v *Values) Get(ctx context.Context, name string) (value driver.Value, err error) {
	if err := fail.CheckNames("get value", name, "-"); err != nil {
		return value, err
	}
	if ctx.Err() != nil {
		return value, fail.Unsent(ctx, "get value", name)
	}
	err = v.row(ctx, `select data, token, source, written from {table} where name = $1::text`, []any{name},
		&value.Data, &value.Token, &value.Source, &value.Written)
	if errors.Is(err, pgx.ErrNoRows) || isUndefined(err) {
		return driver.Value{}, nil
	}
	return value, failure.Uncommitted(ofStatement(ctx, "get value", name, err))
}

// Watch reports a value and its changes; see driver.Values.
func (v *Values) Watch(ctx context.Context, name string, each func(driver.Value)) error {
	if err := fail.CheckNames("watch value", name, "-"); err != nil {
		return err
	}
	woken, leave := v.woken.Enter(name)
	defer leave()
	if err := v.begin(ctx); err != nil {
		return v.unwatched(ctx, name, err)
	}
	defer v.finish()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var last driver.Value
	for first := true; ; first = false {
		value, err := v.Get(ctx, name)
		if err != nil {
			return v.unwatched(ctx, name, err)
		}
		if first || value.Token != last.Token || !value.Written.Equal(last.Written) || !bytes.Equal(value.Data, last.Data) {
			each(value)
			last = value
		}
		select {
		case <-ctx.Done():
			return fail.Unsent(ctx, "watch value", name)
		case <-woken:
		case <-look.C:
		}
	}
}

// unwatched returns the error of a watch that ended; it is Retryable unless ctx has ended.
func (v *Values) unwatched(ctx context.Context, name string, err error) error {
	if ctx.Err() != nil {
		return fail.Unsent(ctx, "watch value", name)
	}
	return failure.Uncommitted(err)
}

// begin starts to listen for the first watch, unless there is a pooler.
func (v *Values) begin(ctx context.Context) error {
	bounded, cancel := context.WithTimeoutCause(ctx, valueTimeout, errNoAnswer)
	defer cancel()
	direct, err := leadsDirectly(bounded, v.pool)
	if err != nil {
		return ofStatement(bounded, "watch value", "", err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.watches++
	if v.watches > 1 || !direct {
		return nil
	}
	life, stop := context.WithCancel(context.Background())
	l := &listener{config: v.pool.Config(), channel: "interlock_value", deliver: v.woken.Wake}
	var loop sync.WaitGroup
	loop.Go(func() { l.run(life) })
	v.end = func() { stop(); loop.Wait() }
	return nil
}

// finish ends the listener with the last watch.
func (v *Values) finish() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.watches--
	if v.watches == 0 && v.end != nil {
		v.end()
		v.end = nil
	}
}
