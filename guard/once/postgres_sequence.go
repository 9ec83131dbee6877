package once

import (
	"context"
	"encoding/hex"

	"github.com/interlock-dev/interlock/driver"
)

// advance is one statement, whose condition is checked again on the row as it is
// once the lock is held. The first number of an epoch may find no row.
func (postgres) advance(ctx context.Context, db driver.SQL, t tables, key string, p place) (bool, error) {
	args := []any{t.consumer, key, p.epoch, hex.EncodeToString(p.hash)}
	query := `
insert into ` + t.sequences + ` as s (consumer, message_key, epoch, seq, payload_hash, moved_at)
values ($1::text, $2::text, $3::bigint, 1, decode($4::text, 'hex'), clock_timestamp())
on conflict (consumer, message_key) do update set
	epoch = excluded.epoch, seq = 1, payload_hash = excluded.payload_hash, moved_at = excluded.moved_at
	where s.epoch < excluded.epoch`
	if p.seq > 1 {
		query = `
update ` + t.sequences + ` set seq = $5::bigint, payload_hash = decode($4::text, 'hex'), moved_at = clock_timestamp()
where consumer = $1::text and message_key = $2::text and epoch = $3::bigint and seq = $5::bigint - 1`
		args = append(args, p.seq)
	}
	n, err := db.Exec(ctx, query, args...)
	return n > 0, err
}

func (postgres) place(ctx context.Context, db driver.SQL, t tables, key string, lock bool) (place, error) {
	query := `select epoch, seq, payload_hash from ` + t.sequences + ` where consumer = $1::text and message_key = $2::text`
	return placeBy(ctx, db, query, t, key, lock)
}

// placeBy reads the place of a key; nowhere if it has none.
func placeBy(ctx context.Context, db driver.SQL, query string, t tables, key string, lock bool) (place, error) {
	if lock {
		query += ` for update`
	}
	p := nowhere
	_, err := row(ctx, db, query, []any{t.consumer, key}, &p.epoch, &p.seq, &p.hash)
	return p, err
}

func (postgres) skip(ctx context.Context, db driver.SQL, t tables, key string, p place) error {
	_, err := db.Exec(ctx, `
insert into `+t.sequences+` as s (consumer, message_key, epoch, seq, payload_hash, moved_at)
values ($1::text, $2::text, $3::bigint, $4::bigint, null, clock_timestamp())
on conflict (consumer, message_key) do update set
	epoch = excluded.epoch, seq = excluded.seq, payload_hash = null, moved_at = excluded.moved_at
	where (s.epoch, s.seq) < (excluded.epoch, excluded.seq)`, t.consumer, key, p.epoch, p.seq)
	return err
}
