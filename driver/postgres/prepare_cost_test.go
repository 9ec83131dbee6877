package postgres

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/internal/prepared/preparedtest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestCostOfABranch: database/sql adds an empty transaction to a prepared branch.
func TestCostOfABranch(t *testing.T) {
	t.Parallel()
	server, o := counting(t)
	db, err := sql.Open("pgx", server.URL())
	testbed.OK(t, err)
	t.Cleanup(func() { db.Close() })
	pool, err := OpenParticipant(t.Context(), o, "shop", nil)
	testbed.OK(t, err)
	std, err := OpenStdParticipant(t.Context(), db, "std", nil)
	testbed.OK(t, err)
	const insert = `insert into account values (gen_random_uuid()::text, 1)`
	count := func() int64 { return executed(t, o) }
	preparedtest.Costs(t, preparedtest.Database[pgx.Tx]{Insert: insert, Exec: func(ctx context.Context, tx pgx.Tx, query string) error {
		_, err := tx.Exec(ctx, query)
		return err
	}}.BankOf(t, pool, db), count, 0)
	preparedtest.Costs(t, preparedtest.Database[*sql.Tx]{Insert: insert, Exec: func(ctx context.Context, tx *sql.Tx, query string) error {
		_, err := tx.ExecContext(ctx, query)
		return err
	}}.BankOf(t, std, db), count, 2)
}
