package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestParticipant(t *testing.T) {
	t.Parallel()
	runParticipant(t, func(t testing.TB, url, namespace, table string) (drivertest.Branches, error) {
		pool := poolAt(t, url)
		p, err := postgres.OpenParticipant(t.Context(), pool, namespace, nil)
		if err != nil {
			return nil, err
		}
		return drivertest.PreparerOf(p, func(ctx context.Context, tx pgx.Tx, key string, value int) error {
			_, err := tx.Exec(ctx, setIn(table), key, value)
			return err
		}, func(ctx context.Context, key string) (value int, err error) {
			err = pool.QueryRow(ctx, getFrom(table), key).Scan(&value)
			return value, err
		}), nil
	})
}

func TestStdParticipant(t *testing.T) {
	t.Parallel()
	runParticipant(t, func(t testing.TB, url, namespace, table string) (drivertest.Branches, error) {
		db := dbAt(t, url)
		p, err := postgres.OpenStdParticipant(t.Context(), db, namespace, nil)
		if err != nil {
			return nil, err
		}
		return drivertest.PreparerOf(p, func(ctx context.Context, tx *sql.Tx, key string, value int) error {
			_, err := tx.ExecContext(ctx, setIn(table), key, value)
			return err
		}, func(ctx context.Context, key string) (value int, err error) {
			err = db.QueryRowContext(ctx, getFrom(table), key).Scan(&value)
			return value, err
		}), nil
	})
}

func setIn(table string) string {
	return `insert into ` + table + ` values ($1, $2) on conflict (k) do update set v = excluded.v`
}

func getFrom(table string) string {
	return `select coalesce((select v from ` + table + ` where k = $1), 0)`
}

func poolAt(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func dbAt(t testing.TB, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

type openBranches func(t testing.TB, url, namespace, table string) (drivertest.Branches, error)

var participants atomic.Int64

func runParticipant(t *testing.T, open openBranches) {
	shared := testbed.Postgres(t)
	drivertest.RunParticipant(t, drivertest.ParticipantHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ParticipantBackend {
			server := shared
			if exclusive {
				server = testbed.Postgres(t)
			}
			b := &participantBackend{paths.New[drivertest.Branches](server), server, fmt.Sprint("n-", participants.Add(1)), open}
			if _, err := poolAt(t, server.URL()).Exec(t.Context(), `create table `+b.table()+` (k text primary key, v int)`); err != nil {
				t.Fatal(err)
			}
			return b
		},
	})
}

type participantBackend struct {
	*paths.Server[drivertest.Branches]
	server    *testbed.Server
	namespace string
	open      openBranches
}

func (b *participantBackend) table() string {
	return "kept_" + strings.ReplaceAll(b.namespace, "-", "_")
}

func (b *participantBackend) Open(t *testing.T) (drivertest.Branches, error) {
	return b.Lead(t, func(path *testbed.Proxy) (drivertest.Branches, error) {
		p, err := b.open(t, strings.Replace(b.server.URL(), b.server.Addr(), path.Addr(), 1), b.namespace, b.table())
		t.Cleanup(path.Close) // before the pool, which waits for what does not answer
		return p, err
	})
}

func (b *participantBackend) Beside(t *testing.T) (drivertest.Branches, error) {
	return b.open(t, b.server.URL(), b.namespace, b.table())
}

func (b *participantBackend) Faults() drivertest.Faults { return b.Server }

// wantHeuristic requires that a branch was finished otherwise.
func wantHeuristic(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, driver.ErrHeuristic) {
		t.Errorf("got %v, want that it was finished otherwise", err)
	}
}
