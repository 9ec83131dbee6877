package journal

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// query reads the heads that rest selects.
func (n tables) query(ctx context.Context, rest string, args []any) (heads []driver.Head, err error) {
	err = n.Each(ctx, `select `+headColumns+` from {heads} `+rest, args, func(scan func(...any) error) error {
		h, err := scanHead(scan)
		heads = append(heads, h)
		return err
	})
	return heads, err
}

// scanHead scans headColumns, and more after them.
func scanHead(scan func(...any) error, more ...any) (h driver.Head, err error) {
	var id, kind []byte
	var shard, claimed, began int64
	var due, ended *int64
	err = scan(append([]any{&id, &shard, &kind, &h.Position, &h.Sum, &due, &claimed, &ended, &began}, more...)...)
	h.Transaction, h.Type, h.Shard, h.Claimed, h.Began = string(id), string(kind), int(shard), claimed != 0, time.UnixMicro(began).UTC()
	if due != nil {
		h.Due = time.UnixMilli(*due).UTC()
	}
	if ended != nil {
		h.Ended = time.UnixMicro(*ended).UTC()
	}
	return h, err
}

// unpack is the inverse of pack. It sets the positions from first on, and reports whether the content
// has the format of pack.
func unpack(content []byte, first int64) (records []driver.Record, ok bool) {
	for len(content) > 0 {
		var fields [4][]byte
		for i := range fields {
			size, n := binary.Uvarint(content)
			if n <= 0 || size > uint64(len(content)-n) {
				return nil, false
			}
			end := n + int(size)
			fields[i], content = content[n:end:end], content[end:]
		}
		records = append(records, driver.Record{Position: first + int64(len(records)),
			Kind: string(fields[0]), Step: string(fields[1]), Data: fields[2], Sum: fields[3]})
	}
	return records, len(records) > 0
}

// Read returns a transaction's head and records by one query, and thus from one snapshot; see
// driver.Journal.
func (t *Table[T]) Read(ctx context.Context, id string, after int64) (head driver.Head, records []driver.Record, err error) {
	const op = "read journal"
	if err := driver.CheckTransaction(op, id); err != nil {
		return head, nil, err
	}
	err = t.read(ctx, op, id, func(n tables) error { // the row of the next record can begin before it
		head, records, err = n.read(ctx, ` and r.position > ?`, ``, after-driver.MaxRecords, id)
		return err
	})
	records = slices.DeleteFunc(records, func(r driver.Record) bool { return r.Position <= after })
	return head, records, err
}

// read reads a head, and the records of the rows that the condition chosen selects.
func (n tables) read(ctx context.Context, chosen, locking string, args ...any) (head driver.Head, records []driver.Record, err error) {
	query := `select h.` + strings.ReplaceAll(headColumns, ", ", ", h.") + `, r.position, r.content, r.epoch, r.written from {heads} h
		left join {records} r on r.id = h.id` + chosen + ` where h.id = ? order by r.position` + locking
	err = n.Each(ctx, query, args, func(scan func(...any) error) error {
		var content []byte
		var position, epoch, written *int64
		head, err = scanHead(scan, &position, &content, &epoch, &written)
		if err != nil || position == nil {
			return err
		}
		row, ok := unpack(content, *position)
		if !ok {
			return damaged(head.Transaction, *position, "its row does not have the format of this package")
		}
		for _, r := range row {
			r.Epoch, r.Written = interlock.Token(*epoch), time.UnixMicro(*written).UTC()
			records = append(records, r)
		}
		return nil
	})
	return head, records, err
}

// Due lists unfinished transactions; see driver.Journal.
func (t *Table[T]) Due(ctx context.Context, shard int, behind driver.Head, limit int) (heads []driver.Head, err error) {
	err = t.read(ctx, "list due", driver.ShardName(shard), func(n tables) (err error) {
		where := `where shard = ? and due is not null`
		args := []any{int64(shard)}
		if behind.Transaction != "" {
			where += ` and (due > ? or due = ? and id > ?)`
			args = append(args, behind.Due.UnixMilli(), behind.Due.UnixMilli(), behind.Transaction)
		}
		heads, err = n.query(ctx, where+` order by due, id limit ?`, append(args, int64(limit)))
		return err
	})
	return heads, err
}

// Heads lists transactions by their ids; see driver.Journal.
func (t *Table[T]) Heads(ctx context.Context, behind string, limit int) (heads []driver.Head, err error) {
	if err := driver.CheckAfter(behind); err != nil {
		return nil, err
	}
	err = t.read(ctx, "list transactions", "", func(n tables) (err error) {
		heads, err = n.query(ctx, `where id > {?} order by id limit ?`, []any{behind, int64(limit)})
		return err
	})
	return heads, err
}

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
