package journal

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
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
