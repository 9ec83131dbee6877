package journal

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Table is a driver.Journal in PostgreSQL or MariaDB: tables of transactions, of
// records and of payloads, and the shards' marks in a [fence.Table]. Its transactions
// are READ COMMITTED at every level of the session. The database's settings decide how
// durable they are: synchronous_commit or innodb_flush_log_at_trx_commit.
//
// Create it by [NewTable]. It is safe for concurrent use.
type Table[T any] struct {
	db   driver.BeginnerAt[T]
	name string
	idle time.Duration // the server's idle timeout for the journal's transactions

	checked atomic.Bool // the columns of the tables
}

// NewTable returns a journal in tables whose names begin with name, or schema.name;
// empty means "interlock_journal". A name has at most 48 bytes and is trusted: never
// take it from a request. NewTable performs no I/O.
func NewTable[T any](db driver.BeginnerAt[T], name string) *Table[T] {
	return &Table[T]{db: db, name: cmp.Or(name, layout.Default), idle: maxIdle}
}

// maxIdle bounds how long a transaction that holds locks of the journal may send nothing.
// Then the server ends it, so that a stopped or disconnected process does not block the
// next owner of its shards.
const maxIdle = 5 * time.Second

// tables are the tables in one transaction.
type tables struct {
	sqltable.Tables
	marks fence.Table
	lent  bool // the transaction is the user's: it may wait for others
	alone bool // each statement is a transaction of its own
}

// marksSuffix is the suffix of the table of marks, a fence.Table.
const marksSuffix = "_shard"

var layout = sqltable.Layout{Part: "journal", Default: DefaultName,
	Tables:  map[string]string{"records": "", "heads": "_head", "payloads": "_payload", "layout": "_layout", "marks": marksSuffix},
	Indexes: map[string]string{"due": "_due", "ended": "_ended", "kept": "_kept"}}

// now is the database's clock, in microseconds since 1970.
const now = `{micros now}`

func (t *Table[T]) in(op, about string, db driver.SQL) (tables, error) {
	n, err := layout.Open(op, about, db, t.name)
	return tables{Tables: n, marks: fence.Table{Name: t.name + marksSuffix}}, err
}

// Create creates the tables unless they exist. It takes effect when the transaction
// commits. On MariaDB it takes effect at once, and commits what the transaction did
// before.
func (t *Table[T]) Create(ctx context.Context, db driver.SQL) error {
	n, err := t.in("create table", "", db)
	if err != nil {
		return err
	}
	if err := n.marks.Create(ctx, db); err != nil {
		return err
	}
	// Ids are compared by their bytes. The records of an append are one row, at the position of the
	// first one. PostgreSQL would compress rows above 2 kB and move them to another table, which takes
	// longer than their append.
	return n.Tables.Create(ctx,
		`create table if not exists {heads} (
			id {id 200} not null primary key,
			shard int not null,
			type {bytes},
			position bigint not null,
			sum {bytes},
			due bigint,
			claimed int not null,
			ended bigint,
			began bigint not null,
			check ((due is null) <> (ended is null))){engine}`,
		`create table if not exists {records} (
			id {id 200} not null,
			position bigint not null,
			content {bytes},
			epoch bigint not null,
			written bigint not null,
			primary key (id, position)){engine}{pg  with (toast_tuple_target = 8160)}`,
		`create table if not exists {payloads} (
			id {id 200} not null,
			sum varchar(64) not null,
			data {bytes},
			kept bigint not null,
			primary key (id, sum)){engine}`,
		`create table if not exists {layout} (
			id int not null primary key,
			shards bigint not null){engine}`,
		`create index if not exists {due} on {heads} (shard, due, id){pg  where due is not null}`,
		`create index if not exists {ended} on {heads} (ended){pg  where ended is not null}`,
		`create index if not exists {kept} on {payloads} (kept)`)
}

// Enter raises the epoch of a shard; see driver.Journal.
func (t *Table[T]) Enter(ctx context.Context, shard int, epoch interlock.Token) error {
	name := driver.ShardName(shard)
	if shard < 0 || !epoch.Valid() {
		return failure.Bug("enter shard", name, "%d is not a token", epoch)
	}
	return t.change(ctx, "enter shard", name, func(n tables) error {
		return n.marks.Enter(ctx, n.SQL(), name, epoch, "journal")
	})
}

// change runs fn, which locks rows, in a transaction with an idle timeout on the server,
// and commits it if fn returns nil.
func (t *Table[T]) change(ctx context.Context, op, name string, fn func(tables) error) error {
	return t.within(ctx, op, name, func(tx driver.Tx[T], n tables) error {
		if err := tx.Bound(ctx, t.idle, 0); err != nil {
			return err
		}
		return fn(n)
	})
}

// read runs fn, which locks nothing and needs no transaction around its statements.
func (t *Table[T]) read(ctx context.Context, op, name string, fn func(tables) error) error {
	if done, err := t.alone(ctx, op, name, fn); done {
		return err
	}
	return t.within(ctx, op, name, func(_ driver.Tx[T], n tables) error { return fn(n) })
}

// alone runs fn, whose statements are atomic by themselves, without a transaction around them. done is
// false if the database does not support that; then fn was not called.
func (t *Table[T]) alone(ctx context.Context, op, name string, fn func(tables) error) (done bool, err error) {
	db, ok := t.db.(driver.Autocommitter)
	if !ok || ctx.Err() != nil {
		return false, nil
	}
	n, err := t.in(op, name, db.Autocommit(driver.ReadCommitted))
	n.alone = true
	if err == nil {
		err = fn(n)
	}
	return true, failure.Table(op, name, "journal", err)
}

// within runs fn in a transaction, and commits it if fn returns nil.
func (t *Table[T]) within(ctx context.Context, op, name string, fn func(driver.Tx[T], tables) error) error {
	if ctx.Err() != nil {
		return &interlock.Error{Op: op, Name: name, Kind: interlock.Definite, Err: context.Cause(ctx)}
	}
	err := transact.Do(ctx, transact.At(t.db, driver.ReadCommitted), name, func(tx driver.Tx[T]) error {
		n, err := t.in(op, name, tx)
		if err == nil {
			err = fn(tx, n)
		}
		return err
	})
	return failure.Table(op, name, "journal", err)
}
