package journal

import (
	"context"
	"slices"

	"github.com/interlock-dev/interlock/driver"
)

// Shards keeps the number of shards; see driver.Journal.
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
	err = n.Each(ctx, `select shards from {layout} where id = 1`+locking, nil, func(scan func(...any) error) error {
		var shards int64
		err := scan(&shards)
		stored = int(shards)
		return err
	})
	return stored, err
}

// sharedShards is the number of shards that is stored, as long as the transaction lasts.
type sharedShards struct {
	number int
	busy   bool // it is being changed
}

// shareShards keeps the number of shards from being changed before the transaction ends, if
// an append asks for it. Outside of lent transactions it does not wait for a change.
func (n tables) shareShards(ctx context.Context, appends []driver.Append, asked []int) (stored sharedShards, err error) {
	if !slices.ContainsFunc(asked, func(i int) bool { return appends[i].After == 0 && appends[i].Shards != 0 }) {
		return stored, nil
	}
	locking := ` {share}`
	if !n.lent {
		locking += ` skip locked`
	}
	stored.number, err = n.shards(ctx, locking)
	if err == nil && stored.number == 0 && !n.lent {
		var seen int
		seen, err = n.shards(ctx, "")
		stored.busy = seen != 0
	}
	return stored, err
}

// refuses reports whether an append may not begin a transaction.
func (s sharedShards) refuses(a driver.Append) bool {
	return a.After == 0 && a.Shards != 0 && a.Shards != s.number
}

func (s sharedShards) refusal(a driver.Append) error {
	if s.busy {
		return inUse("append", a.Transaction)
	}
	return &driver.ShardsError{Stored: s.number, Opened: a.Shards}
}

// ShardsIn reads the number of shards in a transaction of the user's; see [TxStore].
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
