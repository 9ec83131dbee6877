package proxy

// The id is that of [Key], so that it has one length and no collation; resource
// and operation are for people. An attempt that was begun and has no answer is
// one that may have been sent. Times are shown in microseconds, since clients
// differ in how they read them.

var postgres = dialect{
	create: []string{
		// CREATE … IF NOT EXISTS fails if another session creates it just then.
		`select pg_advisory_xact_lock(hashtextextended('interlock call: create', 0))`,
		`create table if not exists %[1]s (
			id text primary key,
			resource text not null,
			operation text not null,
			token bigint not null,
			attempts bigint not null,
			status bigint not null,
			called_at timestamptz not null,
			settled_at timestamptz)`,
	},
	begin: `insert into %[1]s as c (id, resource, operation, token, attempts, status, called_at)
		values ($1::text, $2::text, $3::text, $4::bigint, 1, 0, clock_timestamp())
		on conflict (id) do update set attempts = c.attempts + 1, token = excluded.token
		returning attempts, status, settled_at is not null, (extract(epoch from called_at) * 1000000)::bigint`,
	show:     `select token, attempts, status, settled_at is not null, (extract(epoch from called_at) * 1000000)::bigint from %[1]s where id = $1::text`,
	answered: `update %[1]s set status = $1::bigint where id = $2::text and attempts = $3::bigint and token = $4::bigint and settled_at is null`,
	withdraw: `delete from %[1]s where id = $1::text and token = $2::bigint and attempts = 1 and status = 0 and settled_at is null
		and (extract(epoch from called_at) * 1000000)::bigint = $3::bigint`,
	settle: `update %[1]s set status = $1::bigint, settled_at = clock_timestamp() where id = $2::text and settled_at is null`,
	remove: `delete from %[1]s where id = $1::text and settled_at is null`,
	clean:  `delete from %[1]s where settled_at < clock_timestamp() - $1::bigint * interval '1 microsecond'`,
}

var mariadb = dialect{
	create: []string{`create table if not exists %[1]s (
		id varbinary(64) primary key,
		resource varbinary(512) not null,
		operation varbinary(255) not null,
		token bigint not null,
		attempts bigint not null,
		status bigint not null,
		called_at datetime(6) not null,
		settled_at datetime(6)) engine = InnoDB`},
	begin: `insert into %[1]s (id, resource, operation, token, attempts, status, called_at) values (?, ?, ?, ?, 1, 0, utc_timestamp(6))
		on duplicate key update attempts = attempts + 1, token = values(token)
		returning attempts, status, settled_at is not null, timestampdiff(microsecond, '1970-01-01', called_at)`,
	show:     `select token, attempts, status, settled_at is not null, timestampdiff(microsecond, '1970-01-01', called_at) from %[1]s where id = ?`,
	answered: `update %[1]s set status = ? where id = ? and attempts = ? and token = ? and settled_at is null`,
	withdraw: `delete from %[1]s where id = ? and token = ? and attempts = 1 and status = 0 and settled_at is null
		and timestampdiff(microsecond, '1970-01-01', called_at) = ?`,
	settle: `update %[1]s set status = ?, settled_at = utc_timestamp(6) where id = ? and settled_at is null`,
	remove: `delete from %[1]s where id = ? and settled_at is null`,
	clean:  `delete from %[1]s where settled_at < utc_timestamp(6) - interval ? microsecond`,
}
