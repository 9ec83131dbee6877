package backend

import (
	"context"
	"database/sql"
	"strings"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock/driver/mysql"
)

// mysqlLocks are those of sessions or, with ?mode=table, of the lease table.
func (t Target) mysqlLocks(ctx context.Context, o Options) (*Locks, error) {
	cfg, err := t.mysqlConfig()
	if err != nil {
		return nil, err
	}
	settings := &mysql.Options{TTL: o.TTL, Namespace: t.own.Get("namespace"), Seed: o.Seed}
	if t.mode != "table" {
		d, err := mysql.Open(ctx, cfg, settings)
		return opened(below(o.Prefix, d), err, nothing)
	}
	db, err := t.dialMySQL()
	if err != nil {
		return nil, err
	}
	d, err := mysql.OpenTable(ctx, db, settings)
	return opened(below(o.Prefix, d), err, func() { _ = db.Close() })
}

func (t Target) dialMySQL() (*sql.DB, error) {
	cfg, err := t.mysqlConfig()
	if err != nil {
		return nil, err
	}
	connector, err := client.NewConnector(cfg)
	if err != nil {
		return nil, errMySQLOptions
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

// connections are the most of one pool: others have business with the server too, which
// turns everybody away when it has too many.
const connections = 16

var errMySQLOptions = &URLError{"the mysql URL is not understood: check its options"}

// mysqlConfig has the client read its own options, and nothing else, from text.
func (t Target) mysqlConfig() (*client.Config, error) {
	cfg, err := client.ParseDSN("tcp(" + t.endpoints[0] + ")/?" + t.query.Encode())
	if err != nil {
		return nil, errMySQLOptions
	}
	cfg.DBName = strings.TrimPrefix(t.path, "/")
	if t.user != nil {
		cfg.User = t.user.Username()
		cfg.Passwd, _ = t.user.Password()
	}
	cfg.InterpolateParams, cfg.Logger = true, &client.NopLogger{}
	return cfg, nil
}
