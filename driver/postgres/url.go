package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

func init() {
	backend.Register(backend.Scheme{
		Kind: "postgres", Also: []string{"postgresql"}, Form: "postgres://host:port/database", Port: "5432",
		Options: []string{"DateStyle", "IntervalStyle", "TimeZone", "application_name", "channel_binding", "client_encoding",
			"connect_timeout", "datestyle", "default_query_exec_mode", "description_cache_capacity",
			"idle_in_transaction_session_timeout", "intervalstyle", "krbspn", "krbsrvname", "lock_timeout",
			"max_protocol_version", "min_protocol_version", "options", "passfile", "password", "pool_health_check_period",
			"pool_max_conn_idle_time", "pool_max_conn_lifetime", "pool_max_conn_lifetime_jitter", "pool_max_conns",
			"pool_min_conns", "pool_min_idle_conns", "pool_ping_timeout", "require_auth", "search_path", "service",
			"servicefile", "sslcert", "sslcertmode", "sslkey", "sslmode", "sslnegotiation", "sslpassword", "sslrootcert",
			"sslsni", "statement_cache_capacity", "statement_timeout", "target_session_attrs", "timezone", "user"},
		Settings:  map[string][]string{"mode": {"session", "table"}, "namespace": nil},
		Hint:      "other settings go into options, as in options=-c%20work_mem%3D8MB",
		Abilities: backend.Values | backend.Tables | backend.Participants,
		MinTTL:    MinTTL, MaxTTL: MaxTTL,
		Connect: connect,
	})
}

// connect makes the pool, which connects when it is used.
func connect(ctx context.Context, u *backend.URL) (backend.Connection, error) {
	cfg, err := pgxpool.ParseConfig(u.Client())
	if err != nil {
		return nil, &backend.URLError{Reason: "the postgres URL is not understood: check its database and options"}
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return connection{pool, u.Setting("mode") == "table", u.Setting("namespace")}, nil
}

// connection is what a URL opens.
type connection struct {
	pool      *pgxpool.Pool
	table     bool
	namespace string
}

// Fenced opens a [Driver] or, with ?mode=table, a [Table].
func (c connection) Fenced(ctx context.Context, o backend.LockOptions) (backend.Locks, error) {
	if c.table {
		return OpenTable(ctx, c.pool, &TableOptions{TTL: o.TTL, Namespace: c.namespace, Seed: o.Seed})
	}
	d, err := Open(ctx, c.pool.Config().ConnConfig, &Options{TTL: o.TTL, Namespace: c.namespace, Seed: o.Seed})
	if pooler := (*PoolerError)(nil); errors.As(err, &pooler) {
		return nil, problem("open", "", interlock.Definite, fmt.Errorf("%w: here that is ?mode=table in the URL", pooler))
	}
	return d, err
}

// Values are those of [NewValues], in the table beside the tables of locks.
func (c connection) Values(context.Context, string) (driver.Values, error) {
	return NewValues(c.pool, cmp.Or(c.namespace, DefaultNamespace)+"_value"), nil
}

// KeyValues are those of [NewKeyValues], in the table beside the tables of locks.
func (c connection) KeyValues(string) driver.KeyValues {
	return NewKeyValues(c.pool, cmp.Or(c.namespace, DefaultNamespace)+"_kv")
}

// Notifier is that of [NewNotifier], on the channel name + "_notifier", unless the pool leads through a
// pooler that shares sessions. In place of a name that is too long, as with a schema, it uses a hash.
func (c connection) Notifier(ctx context.Context, name string) (driver.Notifier, func(context.Context) error, error) {
	direct, err := leadsDirectly(ctx, c.pool)
	if err != nil || !direct {
		return nil, nil, failedBefore(ctx, "open notifier", name, err)
	}
	if len(name)+len(notifierSuffix) > maxChannel {
		name = fmt.Sprintf("%x", sha256.Sum224([]byte(name)))[:maxChannel-len(notifierSuffix)]
	}
	b, err := NewNotifier(c.pool.Config().ConnConfig, name+notifierSuffix, nil)
	if err != nil {
		return nil, nil, err
	}
	return b, b.Close, nil
}

const notifierSuffix = "_notifier"

// SQL is [Pool].
func (c connection) SQL() driver.BeginnerAt[driver.SQL] { return backend.Untyped(Pool(c.pool)) }

// Participant is that of [OpenParticipant].
func (c connection) Participant(ctx context.Context, namespace string) (driver.Participant, error) {
	return OpenParticipant(ctx, c.pool, namespace, nil)
}

// Close ends the pool.
func (c connection) Close() error {
	c.pool.Close()
	return nil
}
