package postgres

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// KeyValues is a key-value store with compare-and-swap: a row for each key, and one statement
// for each step. It implements driver.KeyValues.
type KeyValues struct {
	pool     *pgxpool.Pool
	table    string // quoted, as is the sequence
	sequence string
	invalid  error // of the name
}

var _ driver.KeyValues = (*KeyValues)(nil)

// NewKeyValues keeps values in table, "name" or "schema.name", which is created with the first
// swap. The name has at most 62 bytes; with another one each call is a Bug. Revisions are of the
// sequence "name_revision", cut at 63 bytes. The pool stays the caller's. It does no I/O.
func NewKeyValues(pool *pgxpool.Pool, table string) *KeyValues {
	k := &KeyValues{pool: pool}
	const suffix = "_revision"
	room := 63 - len(table[strings.LastIndexByte(table, '.')+1:])
	k.sequence, k.invalid = sqltable.Identifier(driver.Postgres, table, suffix[:min(len(suffix), max(room, 1))])
	k.table, _ = sqltable.Identifier(driver.Postgres, table, "") // shorter
	return k
}

// Get reads keys; see driver.KeyValues.
func (k *KeyValues) Get(ctx context.Context, keys ...string) ([]driver.KeyValue, error) {
	const op = "get keys"
	got := make([]driver.KeyValue, len(keys))
	place := map[string][]int{}
	for i, key := range keys {
		if err := driver.CheckName(op, "a key", key, driver.MaxName); err != nil {
			return nil, err
		}
		got[i].Key = key
		place[key] = append(place[key], i)
	}
	if len(keys) == 0 {
		return got, nil
	}
	found, err := k.read(ctx, op, keys[0], `select key, value, revision from {table} where key = any($1::text[])`, keys)
	for _, kv := range found {
		for _, i := range place[kv.Key] {
			got[i] = kv
		}
	}
	return got, err
}

// Scan reads a range of keys; see driver.KeyValues.
func (k *KeyValues) Scan(ctx context.Context, from, to string, limit int) ([]driver.KeyValue, error) {
	after, from := cutAtNUL(from, ">=", ">")
	before, end := cutAtNUL(to, "<", "<=")
	if to == "" {
		before, end = "<>", "" // no key is empty
	}
	return k.read(ctx, "scan keys", from, `select key, value, revision from {table} where key `+after+` $1::text and key `+before+` $2::text
		order by key limit $3::bigint`, from, end, int64(max(limit, 0)))
}

// cutAtNUL returns a bound that Postgres accepts, and how to compare with it. A text of Postgres has
// no NUL, and no key has one, so every key above the part before a NUL is above the bound.
func cutAtNUL(b, whole, cut string) (operator, text string) {
	if before, _, found := strings.Cut(b, "\x00"); found {
		return cut, before
	}
	return whole, b
}

// read is the rows of a query; none if there is no table yet.
func (k *KeyValues) read(ctx context.Context, op, name, text string, args ...any) ([]driver.KeyValue, error) {
	if k.invalid != nil {
		return nil, k.invalid
	}
	if ctx.Err() != nil {
		return nil, fail.Unsent(ctx, op, name)
	}
	bounded, cancel := context.WithTimeoutCause(ctx, valueTimeout, errNoAnswer)
	defer cancel()
	rows, err := k.pool.Query(bounded, k.text(text), append([]any{pgx.QueryExecModeExec}, args...)...)
	if err == nil {
		var got []driver.KeyValue
		if got, err = pgx.CollectRows(rows, pgx.RowToStructByPos[driver.KeyValue]); err == nil {
			return got, nil
		}
	}
	if isUndefined(err) {
		return nil, nil
	}
	return nil, failure.Uncommitted(ofStatement(bounded, op, name, err))
}

func (k *KeyValues) text(text string) string {
	return strings.NewReplacer("{table}", k.table, "{sequence}", k.sequence).Replace(text)
}

// swapKeys: keys, revisions, values, whether each is deleted. It locks the rows that must be
// there in the order of their keys, and writes if all had their revisions. A row that must not
// be there violates its key if it comes at the same time.
const swapKeys = `with wanted as (
	select * from unnest($1::text[], $2::bigint[], $3::bytea[], $4::boolean[]) as w(key, revision, value, deletes)
), locked as materialized (
	select t.key from {table} t join wanted w on w.key = t.key and w.revision = t.revision order by t.key for update of t
), step as materialized (
	select nextval('{sequence}') as revision where (select count(*) from locked) = (select count(*) from wanted where revision > 0)
		and not exists (select from {table} t join wanted w on w.key = t.key where w.revision = 0)
), deleted as (
	delete from {table} t using wanted w, step where w.key = t.key and w.deletes
), updated as (
	update {table} t set value = w.value, revision = step.revision from wanted w, step where w.key = t.key and w.revision > 0 and not w.deletes
), inserted as (
	insert into {table} (key, value, revision) select w.key, w.value, step.revision from wanted w, step where w.revision = 0
)
select coalesce((select revision from step), 0)`

// Swap makes all swaps or none by one statement; see driver.KeyValues. Two that need the same
// keys at the same time may fail, Retryable.
func (k *KeyValues) Swap(ctx context.Context, swaps ...driver.Swap) (revision int64, err error) {
	const op = "swap keys"
	if k.invalid != nil {
		return 0, k.invalid
	}
	if err := driver.CheckSwaps(swaps); err != nil {
		return 0, problem(op, "", interlock.Bug, err)
	}
	name := swaps[0].Key
	if ctx.Err() != nil {
		return 0, fail.Unsent(ctx, op, name)
	}
	n := len(swaps)
	keys, revisions, values, deletes := make([]string, n), make([]int64, n), make([][]byte, n), make([]bool, n)
	for i, s := range swaps {
		keys[i], revisions[i], values[i], deletes[i] = s.Key, s.Revision, append([]byte{}, s.Value...), s.Delete
	}
	bounded, cancel := context.WithTimeoutCause(ctx, valueTimeout, errNoAnswer)
	defer cancel()
	conn, err := acquire(ctx, bounded, k.pool)
	if err != nil {
		return 0, ofStatement(ctx, op, name, err)
	}
	defer conn.Release()
	swap := func() error {
		return conn.QueryRow(bounded, k.text(swapKeys), pgx.QueryExecModeExec, keys, revisions, values, deletes).Scan(&revision)
	}
	if err = swap(); isUndefined(err) {
		if err = k.create(bounded, conn); err == nil {
			err = swap()
		}
	}
	if hasState(err, "23505") { // unique_violation: a key came meanwhile
		return 0, nil
	}
	return revision, ofStatement(bounded, op, name, err)
}

func (k *KeyValues) create(ctx context.Context, conn *pgxpool.Conn) error {
	return alone(ctx, conn, DefaultNamespace, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, strings.Join(keyValuesSchema(k.table, k.sequence), ";"), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

func keyValuesSchema(table, sequence string) []string {
	return []string{`create sequence if not exists ` + sequence,
		`create table if not exists ` + table + ` (key text collate "C" primary key, value bytea not null, revision bigint not null)`}
}
