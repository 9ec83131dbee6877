package journal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Shards sets or reads the number of shards; see driver.Journal.
func (t *Table[T]) Shards(ctx context.Context, from, to int) (stored int, err error) {
	err = t.change(ctx, "read shards", t.name, func(n tables) (err error) {
		if err := t.check(ctx, n.SQL()); err != nil {
			return err
		}
		if err := n.setShards(ctx, int64(from), int64(to)); err != nil {
			return err
		}
		stored, err = n.shards(ctx, "")
		return err
	})
	return stored, err
}

// check compares the tables with those of this version, once.
func (t *Table[T]) check(ctx context.Context, db driver.SQL) error {
	if t.checked.Load() {
		return nil
	}
	err := driver.CheckTables(ctx, db, "journal", t)
	if err == nil {
		t.checked.Store(true)
	}
	return err
}

func (n tables) setShards(ctx context.Context, from, to int64) error {
	query, args := `update {layout} set shards = ? where id = 1 and shards = ?`, []any{to, from}
	if from == 0 {
		query, args = `insert {maria ignore} into {layout} (id, shards) values (1, ?) {pg on conflict do nothing}`, args[:1]
	}
	if to == 0 {
		return nil
	}
	_, err := n.Exec(ctx, query, args...)
	return err
}

func (n tables) shards(ctx context.Context, locking string) (stored int, err error) {
	_, err = n.Row(ctx, `select shards from {layout} where id = 1`+locking, nil, &stored)
	return stored, err
}

// ShardsIn reads the number of shards in the user's transaction; see [TxStore].
func (t *Table[T]) ShardsIn(ctx context.Context, db driver.SQL) (int, error) {
	n, err := t.lend("read shards", t.name, db)
	if err != nil {
		return 0, err
	}
	stored, err := n.shards(ctx, "")
	return stored, err
}

// Reassign moves an unfinished transaction to another shard; see driver.Journal.
func (t *Table[T]) Reassign(ctx context.Context, h driver.Head, shard int) error {
	return t.change(ctx, "reassign", h.Transaction, func(n tables) error {
		_, err := n.Exec(ctx, `update {heads} set shard = ? where id = ? and position = ?`+
			` and shard = ? and ended is null`, int64(shard), h.Transaction, h.Position, int64(h.Shard))
		return err
	})
}

// DueShards lists shards with due transactions; see driver.Journal. It reads one index entry
// for each shard, in one statement; on MariaDB in one for each hundred shards.
func (t *Table[T]) DueShards(ctx context.Context, shards []int, by time.Time) (due []int, err error) {
	all := slices.Compact(slices.Sorted(slices.Values(shards)))
	if len(all) == 0 {
		return nil, nil
	}
	err = t.read(ctx, "list due shards", "", func(n tables) error {
		at := len(all)
		if n.Maria() {
			at = maxBranches
		}
		for some := range slices.Chunk(all, at) {
			query, args := n.due(some, by.UnixMilli())
			found, err := sqltable.Column[int](ctx, n.Tables, query, args...)
			if err != nil {
				return err
			}
			due = append(due, found...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(due)
	return due, nil
}

// maxBranches bounds the queries of one UNION: each opens the table once more.
const maxBranches = 100

// due returns the query of the shards whose earliest due time is at most by. It must not be
// a join: a database might then read all due rows. MariaDB might read all ended rows as well:
// its indexes sort null first, and only a constant shard bounds the range.
func (n tables) due(shards []int, by int64) (query string, args []any) {
	if !n.Maria() {
		list := strings.Trim(strings.ReplaceAll(fmt.Sprint(shards), " ", ","), "[]")
		return `select s.shard from unnest(string_to_array($1::text, ',')::bigint[]) as s (shard)
			where (select due from {heads} h where h.shard = s.shard and h.due is not null order by h.due limit 1) <= $2`, []any{list, by}
	}
	branch := `(select shard from {heads} where shard = ? and due <= ? order by due limit 1)`
	for _, shard := range shards {
		args = append(args, int64(shard), by)
	}
	return branch + strings.Repeat(` union all `+branch, len(shards)-1), args
}
