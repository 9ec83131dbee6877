package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"strings"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

func init() {
	backend.Register(backend.Scheme{
		Kind: "mysql", Also: []string{"mariadb"}, Form: "mysql://host:port/database", Port: "3306",
		Options: []string{"allowCleartextPasswords", "allowNativePasswords", "charset", "collation", "connectionAttributes",
			"maxAllowedPacket", "readTimeout", "serverPubKey", "timeout", "tls", "writeTimeout"},
		Settings:  map[string][]string{"mode": {"session", "table"}, "namespace": nil},
		Abilities: backend.Tables | backend.Participants,
		MinTTL:    MinTTL, MaxTTL: MaxTTL,
		Check: func(u *backend.URL) error {
			if strings.Count(u.Path(), "/") != 1 {
				return &backend.URLError{Reason: "a MariaDB URL ends with the name of a database, as in mysql://user@host:3306/database"}
			}
			return nil
		},
		Connect: connect,
	})
}

// connections are the most of one pool: others use the server too, and it refuses everybody
// when it has too many.
const connections = 16

var errOptions = &backend.URLError{Reason: "the MariaDB URL is invalid: check its options"}

// connect makes the pool, which connects when it is used. The client reads its own options,
// and nothing else, from text.
func connect(_ context.Context, u *backend.URL) (backend.Connection, error) {
	cfg, err := client.ParseDSN("tcp(" + u.Hosts()[0] + ")/?" + u.Query().Encode())
	if err != nil {
		return nil, errOptions
	}
	cfg.DBName = strings.TrimPrefix(u.Path(), "/")
	if user := u.User(); user != nil {
		cfg.User = user.Username()
		cfg.Passwd, _ = user.Password()
	}
	cfg.InterpolateParams, cfg.Logger = true, &client.NopLogger{}
	connector, err := client.NewConnector(cfg)
	if err != nil {
		return nil, errOptions
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return connection{cfg, db, u.Setting("mode") == "table", u.Setting("namespace")}, nil
}

// connection is what a URL opens.
type connection struct {
	config    *client.Config
	db        *sql.DB
	table     bool
	namespace string
}

// Fenced opens a [Driver] or, with ?mode=table, a [Table].
func (c connection) Fenced(ctx context.Context, o backend.LockOptions) (backend.Locks, error) {
	settings := &Options{TTL: o.TTL, Namespace: c.namespace, Seed: o.Seed}
	if c.table {
		d, err := OpenTable(ctx, c.db, settings)
		if err != nil {
			return nil, err
		}
		return d, nil
	}
	d, err := Open(ctx, c.config, settings)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// KeyValues are those of [NewKeyValues], in the table beside the tables of locks.
func (c connection) KeyValues(string) driver.KeyValues {
	return NewKeyValues(c.db, cmp.Or(c.namespace, DefaultNamespace)+"_kv")
}

// SQL is [DB].
func (c connection) SQL() driver.BeginnerAt[driver.SQL] { return backend.Untyped(DB(c.db)) }

// Participant is that of [OpenParticipant].
func (c connection) Participant(ctx context.Context, namespace string) (driver.Participant, error) {
	p, err := OpenParticipant(ctx, c.db, namespace, nil)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Close ends the pool.
func (c connection) Close() error { return c.db.Close() }
