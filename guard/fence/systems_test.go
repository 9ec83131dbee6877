package fence_test

import "github.com/interlock-dev/interlock/driver"

// system has the SQL that the tests need for a kind of database.
type system struct {
	// Options of a URL.
	isolation  map[string]string // by the level's name
	impatience string            // wait for locks a second at most

	// Statements and parts of them.
	quote     func(name string) string
	sleep     string // for 30 seconds
	timedOut  string // SQLSTATE of a statement that ran for too long
	session   string // its id
	sessions  string // the count of sessions with that id
	idleLimit string // in ms
	audit     string // the rebases, in one text
	// snapshots means that a transaction can write rows that it cannot see, as in InnoDB.
	snapshots bool
}

var systems = map[driver.Dialect]system{driver.Postgres: {
	isolation: map[string]string{"repeatable read": "default_transaction_isolation=repeatable%20read",
		"serializable": "default_transaction_isolation=serializable"},
	impatience: "lock_timeout=1000",
	quote:      func(name string) string { return `"` + name + `"` },
	sleep:      `select pg_sleep(30)`,
	timedOut:   "57014",
	session:    `select pg_backend_pid()`,
	sessions:   `select concat(count(*)) from pg_stat_activity where pid = %d`,
	idleLimit:  `select setting::bigint from pg_settings where name = 'idle_in_transaction_session_timeout'`,
	audit: `select string_agg(concat_ws('|', resource, from_token, to_token, reason, rebased_by), ';' order by id)
		from interlock_fence_rebase where abs(extract(epoch from rebased_at - now())) < 3600`,
}, driver.MariaDB: {
	isolation: map[string]string{"repeatable read": "tx_isolation=%27REPEATABLE-READ%27",
		"serializable": "tx_isolation=%27SERIALIZABLE%27", "read committed": "tx_isolation=%27READ-COMMITTED%27"},
	impatience: "innodb_lock_wait_timeout=1",
	quote:      func(name string) string { return "`" + name + "`" },
	sleep:      `select sleep(30)`,
	timedOut:   "70100",
	session:    `select connection_id()`,
	sessions:   `select concat(count(*)) from information_schema.processlist where id = %d`,
	idleLimit:  `select 1000 * @@idle_transaction_timeout`,
	audit: `select group_concat(concat_ws('|', resource, from_token, to_token, reason, rebased_by) order by id separator ';')
		from interlock_fence_rebase where abs(timestampdiff(second, rebased_at, utc_timestamp())) < 3600`,
	snapshots: true,
}}
