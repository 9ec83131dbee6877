package journal

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
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
