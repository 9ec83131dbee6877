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

// connections bounds one pool: others use the server too, and above its own bound it refuses all
// clients.
const connections = 16

var errOptions = &backend.URLError{Reason: "the MariaDB URL is invalid: check its options"}

// connect returns a pool, which connects at its first use. The client parses only its own options
// from text.
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

// connection is the connection of a URL.
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
		return OpenTable(ctx, c.db, settings)
	}
	return Open(ctx, c.config, settings)
}

// KeyValues returns [NewKeyValues] with the table of the namespace of locks.
func (c connection) KeyValues(string) driver.KeyValues {
	return NewKeyValues(c.db, cmp.Or(c.namespace, DefaultNamespace)+"_kv")
}

// SQL returns [DB].
func (c connection) SQL() driver.BeginnerAt[driver.SQL] { return backend.Untyped(DB(c.db)) }

// Participant returns [OpenParticipant].
func (c connection) Participant(ctx context.Context, namespace string) (driver.Participant, error) {
	return OpenParticipant(ctx, c.db, namespace, nil)
}

// Close closes the pool.
func (c connection) Close() error { return c.db.Close() }
