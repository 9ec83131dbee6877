package once

import "context"

// advance moves key to p if p comes next, and reports whether it did. It waits for other
// transactions that move key. The condition is checked on the locked row. The first number of
// an epoch may find no row.
func (t tables) advance(ctx context.Context, key string, p place) (moved bool, err error) {
	condition, args := `epoch < ?`, []any{p.epoch, p.seq, p.hash, t.Consumer, key, p.epoch}
	switch {
	case p.seq > 1:
		condition, args = `epoch = ? and seq = ?`, append(args, p.seq-1)
	case t.Maria():
		err = t.touch(ctx, key)
	default:
		n, err := t.Exec(ctx, insertPlace+`where s.epoch < ?`, args...)
		return n > 0, err
	}
	if err != nil {
		return false, err
	}
	n, err := t.Exec(ctx, `update {sequences} set epoch = ?, seq = ?, payload_hash = ?, moved_at = {now}
where consumer = ? and message_key = ? and `+condition, args...)
	return n > 0, err
}

// insertPlace sets the place of a key on PostgreSQL, under a condition that follows.
const insertPlace = `
insert into {sequences} as s (epoch, seq, payload_hash, consumer, message_key, moved_at) values (?, ?, ?, ?, ?, {now})
on conflict (consumer, message_key) do update set epoch = excluded.epoch, seq = excluded.seq,
	payload_hash = excluded.payload_hash, moved_at = excluded.moved_at
`

// touch inserts the row of a key on MariaDB, if there is none, and locks the row. A new row has
// the epoch of nowhere.
func (t tables) touch(ctx context.Context, key string) error {
	_, err := t.Exec(ctx, `insert into {sequences} (consumer, message_key, epoch, seq, moved_at) values (?, ?, -1, 0, {now})
on duplicate key update message_key = values(message_key)`, t.Consumer, key)
	return err
}

// place reads the place of key, or nowhere if key has no row. lock is the end of the query.
func (t tables) place(ctx context.Context, key, lock string) (place, error) {
	p := nowhere
	_, err := t.Row(ctx, `select epoch, seq, payload_hash from {sequences} where consumer = ? and message_key = ?`+lock,
		[]any{t.Consumer, key}, &p.epoch, &p.seq, &p.hash)
	return p, err
}

// skip moves key to p, unless key is at p or beyond.
func (t tables) skip(ctx context.Context, key string, p place) (err error) {
	args := []any{p.epoch, p.seq, nil, t.Consumer, key, p.epoch, p.epoch, p.seq}
	query := insertPlace + `where s.epoch < ? or s.epoch = ? and s.seq < ?`
	if t.Maria() {
		if err := t.touch(ctx, key); err != nil {
			return err
		}
		query = `update {sequences} set epoch = ?, seq = ?, payload_hash = ?, moved_at = {now}
where consumer = ? and message_key = ? and (epoch < ? or epoch = ? and seq < ?)`
	}
	_, err = t.Exec(ctx, query, args...)
	return err
}
