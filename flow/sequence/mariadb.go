package sequence

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
)

// mariadb keeps positions and holes in MariaDB. Names are compared by their bytes.
// Rows are changed and read by statements that lock, which see what was committed
// last whatever the transaction's snapshot shows. Every row that is counted as
// affected is one that changes, so that it does not matter what the client counts.
type mariadb struct{}

// create ends the transaction.
func (mariadb) create(q tables) []string {
	return []string{
		`create table if not exists ` + q.keys + ` (
			stream varbinary(255) not null,
			name varbinary(512) not null,
			epoch bigint not null,
			seq bigint not null,
			open_holes bigint not null,
			moved_at datetime(6) not null,
			primary key (stream, name)) engine = InnoDB default charset = utf8mb4`,
		`create table if not exists ` + q.holes + ` (
			stream varbinary(255) not null,
			name varbinary(512) not null,
			epoch bigint not null,
			from_seq bigint not null,
			to_seq bigint not null,
			opened_at datetime(6) not null,
			closed_at datetime(6),
			primary key (stream, name, epoch, from_seq)) engine = InnoDB default charset = utf8mb4`,
		`create table if not exists ` + q.dead + ` (
			stream varbinary(255) not null,
			name varbinary(512) not null,
			epoch bigint not null,
			seq bigint not null,
			payload longblob not null,
			attempts int not null,
			error text not null,
			died_at datetime(6) not null,
			primary key (stream, name, epoch, seq)) engine = InnoDB default charset = utf8mb4`,
	}
}

// advance is one statement, and one before it for a key that may have no row yet.
func (m mariadb) advance(ctx context.Context, db driver.SQL, q tables, move Move) (bool, error) {
	if move.From == (Position{}) {
		// It locks the row whether it was there or not.
		_, err := db.Exec(ctx, m.sql(`insert into `+q.keys+` (stream, name, epoch, seq, open_holes, moved_at)
			values (?, ?, 0, 0, 0, now()) on duplicate key update stream = values(stream)`), move.Stream, move.Key)
		if err != nil {
			return false, err
		}
	}
	n, err := db.Exec(ctx, m.sql(`update `+q.keys+` set epoch = ?, seq = ?, open_holes = open_holes + ?, moved_at = now()
		where stream = ? and name = ? and epoch = ? and seq = ?`),
		move.To.Epoch, move.To.Seq, move.opens(), move.Stream, move.Key, move.From.Epoch, move.From.Seq)
	return n > 0, err
}

func (m mariadb) lock(ctx context.Context, db driver.SQL, q tables, stream, key string) (s State, err error) {
	_, err = row(ctx, db, m.sql(`select epoch, seq, open_holes from `+q.keys+` where stream = ? and name = ? for update`),
		[]any{stream, key}, &s.Epoch, &s.Seq, &s.Holes)
	return s, err
}

func (m mariadb) purge(q tables) string {
	return m.sql(`delete from ` + q.holes + ` where stream = ? and closed_at < now() - interval ? microsecond limit ?`)
}

// sql puts the clock in.
func (mariadb) sql(query string) string {
	query = clock.ReplaceAllString(query, "utc_timestamp(6)")
	return micros.ReplaceAllString(query, "timestampdiff(microsecond, '1970-01-01', $1)")
}
