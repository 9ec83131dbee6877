package journal

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

const headColumns = `id, shard, type, position, sum, due, claimed, ended, began`

// headCasts are the types of the columns that are parameters.
var headCasts = []string{"varchar", "int", "bytea", "bigint", "bytea", "bigint", "int"}

// query reads the heads that the rest of the query chooses.
func (n tables) query(ctx context.Context, rest string, args []any) ([]driver.Head, error) {
	return n.scan(ctx, `select `+headColumns+` from {heads} `+rest, args)
}

// scan reads the heads that a query gives.
func (n tables) scan(ctx context.Context, query string, args []any) (heads []driver.Head, err error) {
	err = n.Each(ctx, query, args, func(scan func(...any) error) error {
		var h driver.Head
		var id, kind []byte
		var shard, claimed, began int64
		var due, ended *int64
		err := scan(&id, &shard, &kind, &h.Position, &h.Sum, &due, &claimed, &ended, &began)
		h.Transaction, h.Type, h.Shard, h.Claimed, h.Began = string(id), string(kind), int(shard), claimed != 0, time.UnixMicro(began).UTC()
		if due != nil {
			h.Due = time.UnixMilli(*due).UTC()
		}
		if ended != nil {
			h.Ended = time.UnixMicro(*ended).UTC()
		}
		heads = append(heads, h)
		return err
	})
	return heads, err
}

// Read gives a transaction's head and records; see driver.Journal.
func (t *Table[T]) Read(ctx context.Context, id string, after int64) (head driver.Head, records []driver.Record, err error) {
	const op = "read journal"
	if err := driver.CheckTransaction(op, id); err != nil {
		return head, nil, err
	}
	// Two queries, of one snapshot.
	err = t.read(ctx, op, id, driver.RepeatableRead, func(n tables) error {
		heads, err := n.query(ctx, `where id = ?`, []any{id})
		if err != nil || len(heads) == 0 {
			return err
		}
		head = heads[0]
		records, err = n.read(ctx, id, after)
		return err
	})
	return head, records, err
}

func (n tables) read(ctx context.Context, id string, after int64) (records []driver.Record, err error) {
	return n.scanRecords(ctx, `where id = ? and position > ? order by position`, []any{id, after})
}

// scanRecords reads the records that the rest of the query chooses.
func (n tables) scanRecords(ctx context.Context, rest string, args []any) (records []driver.Record, err error) {
	query := `select position, kind, step, data, sum, epoch, written from {records} ` + rest
	err = n.Each(ctx, query, args, func(scan func(...any) error) error {
		var r driver.Record
		var kind, step []byte
		var written int64
		err := scan(&r.Position, &kind, &step, &r.Data, &r.Sum, (*int64)(&r.Epoch), &written)
		r.Kind, r.Step, r.Written = string(kind), string(step), time.UnixMicro(written).UTC()
		records = append(records, r)
		return err
	})
	return records, err
}

// Due lists what is unfinished; see driver.Journal.
func (t *Table[T]) Due(ctx context.Context, shard int, behind driver.Head, limit int) (heads []driver.Head, err error) {
	err = t.read(ctx, "list due", driver.ShardName(shard), driver.ReadCommitted, func(n tables) (err error) {
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
	err = t.read(ctx, "list transactions", "", driver.ReadCommitted, func(n tables) (err error) {
		heads, err = n.query(ctx, `where id > ? order by id limit ?`, []any{behind, int64(limit)})
		return err
	})
	return heads, err
}
