package once

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock/driver"
)

// mariadb keeps records in MariaDB, under a primary key of bytes.
//
// INSERT IGNORE is not used: it makes warnings of other errors too. No count of
// affected rows is relied on but that of rows which certainly change. What decides
// is read by statements that lock, which see what was committed last, whatever
// the transaction's snapshot shows.
type mariadb struct{}

// create: CREATE ends the transaction.
func (mariadb) create(ctx context.Context, db driver.SQL, t tables) error {
	return run(ctx, db,
		`create table if not exists `+t.records+` (
			consumer varbinary(255) not null,
			message_id varbinary(255) not null,
			payload_hash binary(32) not null,
			repeated tinyint not null,
			recorded_at datetime(6) not null,
			primary key (consumer, message_id),
			key (consumer, recorded_at)) engine = InnoDB`,
		`create table if not exists `+t.sequences+` (
			consumer varbinary(255) not null,
			message_key varbinary(255) not null,
			epoch bigint not null,
			seq bigint not null,
			payload_hash binary(32),
			moved_at datetime(6) not null,
			primary key (consumer, message_key)) engine = InnoDB`)
}

// record tells by column repeated whether a row was there: one statement, which
// changes a row at its first repetition only. RETURNING shows rows as they are.
func (mariadb) record(ctx context.Context, db driver.SQL, t tables, entries []entry) (map[string]finding, error) {
	rows := strings.Repeat(",(?,?,?,0,utc_timestamp(6))", len(entries))[1:]
	args := make([]any, 0, 3*len(entries))
	for _, e := range entries {
		args = append(args, t.consumer, e.id, e.hash)
	}
	found := map[string]finding{}
	query := `insert into ` + t.records + ` (consumer, message_id, payload_hash, repeated, recorded_at) values ` + rows + `
on duplicate key update repeated = 1
returning message_id, repeated, payload_hash`
	err := db.Query(ctx, query, args, func(scan func(...any) error) error {
		var id string
		var repeated int
		var f finding
		err := scan(&id, &repeated, &f.hash)
		f.fresh = repeated == 0
		found[id] = f
		return err
	})
	return found, err
}

func (mariadb) look(ctx context.Context, db driver.SQL, t tables, ids []string) (map[string]finding, error) {
	args := []any{t.consumer}
	for _, id := range ids {
		args = append(args, id)
	}
	found := map[string]finding{}
	query := `select message_id, payload_hash from ` + t.records + ` where consumer = ? and message_id in (` + strings.Repeat(",?", len(ids))[1:] + `)`
	err := db.Query(ctx, query, args, func(scan func(...any) error) error {
		var id string
		var f finding
		err := scan(&id, &f.hash)
		found[id] = f
		return err
	})
	return found, err
}

// clean looks without locks and deletes by id: a delete by age would lock the gap
// into which new records go, and so would this one by the index of ages. What another has deleted meanwhile does not count.
func (mariadb) clean(ctx context.Context, db driver.SQL, t tables, limit int) (cleaned int64, err error) {
	var old []any
	err = db.Query(ctx, `select message_id from `+t.records+`
where consumer = ? and recorded_at < utc_timestamp(6) - interval ? microsecond order by recorded_at limit ?`,
		[]any{t.consumer, t.retention, limit}, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			old = append(old, id)
			return err
		})
	if err != nil {
		return 0, err
	}
	for some := range slices.Chunk(old, batchSize) {
		n, err := db.Exec(ctx, `delete r from `+t.records+` as r force index (primary) where consumer = ? and message_id in (`+strings.Repeat(",?", len(some))[1:]+`)
and recorded_at < utc_timestamp(6) - interval ? microsecond`, append(append([]any{t.consumer}, some...), t.retention)...)
		if err != nil {
			return 0, err
		}
		cleaned += n
	}
	return cleaned, nil
}

// touch makes the row of a key, and locks it. Its epoch is that of nowhere.
const touch = `
insert into %s (consumer, message_key, epoch, seq, moved_at) values (?, ?, -1, 0, utc_timestamp(6))
on duplicate key update message_key = values(message_key)`

func (mariadb) advance(ctx context.Context, db driver.SQL, t tables, key string, p place) (bool, error) {
	query, args := ` and epoch < ?`, []any{p.epoch, p.seq, p.hash, t.consumer, key, p.epoch}
	if p.seq == 1 { // there may be no row
		if _, err := db.Exec(ctx, fmt.Sprintf(touch, t.sequences), t.consumer, key); err != nil {
			return false, err
		}
	} else {
		query, args = ` and epoch = ? and seq = ?`, append(args, p.seq-1)
	}
	n, err := db.Exec(ctx, `update `+t.sequences+` set epoch = ?, seq = ?, payload_hash = ?, moved_at = utc_timestamp(6)
where consumer = ? and message_key = ?`+query, args...)
	return n > 0, err
}

func (mariadb) place(ctx context.Context, db driver.SQL, t tables, key string, lock bool) (place, error) {
	query := `select epoch, seq, payload_hash from ` + t.sequences + ` where consumer = ? and message_key = ?`
	return placeBy(ctx, db, query, t, key, lock)
}

func (mariadb) skip(ctx context.Context, db driver.SQL, t tables, key string, p place) error {
	if _, err := db.Exec(ctx, fmt.Sprintf(touch, t.sequences), t.consumer, key); err != nil {
		return err
	}
	_, err := db.Exec(ctx, `update `+t.sequences+` set epoch = ?, seq = ?, payload_hash = null, moved_at = utc_timestamp(6)
where consumer = ? and message_key = ? and (epoch < ? or epoch = ? and seq < ?)`,
		p.epoch, p.seq, t.consumer, key, p.epoch, p.epoch, p.seq)
	return err
}
