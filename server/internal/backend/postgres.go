package backend

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/postgres"
)

// postgresLocks are those of sessions or, with ?mode=table, of the lease table.
func (t Target) postgresLocks(ctx context.Context, o Options) (*Locks, error) {
	cfg, err := t.postgresConfig()
	if err != nil {
		return nil, err
	}
	namespace := t.own.Get("namespace")
	if t.mode != "table" {
		d, err := postgres.Open(ctx, cfg.ConnConfig, &postgres.Options{TTL: o.TTL, Namespace: namespace, Seed: o.Seed})
		return opened(below(o.Prefix, d), pooled(onOneLine(err)), nothing)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, onOneLine(err)
	}
	d, err := postgres.OpenTable(ctx, pool, &postgres.TableOptions{TTL: o.TTL, Namespace: namespace, Seed: o.Seed})
	return opened(below(o.Prefix, d), onOneLine(err), pool.Close)
}

// pooled says which URL works behind a pooler.
func pooled(err error) error {
	var pooler *postgres.PoolerError
	if errors.As(err, &pooler) {
		return &interlock.Error{Op: "open", Driver: "postgres", Kind: interlock.Definite,
			Err: fmt.Errorf("%w: here that is ?mode=table in the URL", pooler)}
	}
	return err
}

func (t Target) dialPostgres(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := t.postgresConfig()
	if err != nil {
		return nil, err
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

func (t Target) postgresConfig() (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(t.raw)
	if err != nil {
		return nil, &URLError{"the postgres URL is not understood: check its database and options"}
	}
	return cfg, nil
}
