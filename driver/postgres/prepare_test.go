package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/prepared/preparedtest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// The participants of both clients.
var (
	byPool = database(func(ctx context.Context, t testing.TB, url, namespace string, o *postgres.ParticipantOptions) (preparedtest.Preparer[pgx.Tx], error) {
		return postgres.OpenParticipant(ctx, poolAt(t, url), namespace, o)
	}, func(ctx context.Context, tx pgx.Tx, query string) error { _, err := tx.Exec(ctx, query); return err })
	byStd = database(func(ctx context.Context, t testing.TB, url, namespace string, o *postgres.ParticipantOptions) (preparedtest.Preparer[*sql.Tx], error) {
		return postgres.OpenStdParticipant(ctx, dbAt(t, url), namespace, o)
	}, func(ctx context.Context, tx *sql.Tx, query string) error {
		_, err := tx.ExecContext(ctx, query)
		return err
	})
)

// insert is a statement that every branch may run.
const insert = `insert into account values (gen_random_uuid()::text, 1)`

var one = preparedtest.One

func database[T any](open func(ctx context.Context, t testing.TB, url, namespace string, o *postgres.ParticipantOptions) (preparedtest.Preparer[T], error),
	exec func(ctx context.Context, tx T, query string) error) preparedtest.Database[T] {
	return preparedtest.Database[T]{Start: postgres.EmptyServer, Exec: exec, Insert: insert, Schema: "public", Quote: `"`, Missing: "42P01",
		Open: func(ctx context.Context, t testing.TB, url, namespace, marks string) (preparedtest.Preparer[T], *sql.DB, error) {
			p, err := open(ctx, t, url, namespace, &postgres.ParticipantOptions{Marks: marks})
			return p, dbAt(t, url), err
		},
		ByHand: func(verb, transaction string) string {
			return verb + ` prepared 'interlock/shop/b/` + transaction + `'`
		},
	}
}

func TestBranches(t *testing.T) { t.Parallel(); preparedtest.Run(t, byPool) }

func TestStdBranches(t *testing.T) { t.Parallel(); preparedtest.Run(t, byStd) }

// roles are what processes of this package's own do that crash.
var roles = map[string]crash.Role{"branch": preparedtest.Drive(byPool, func(ctx context.Context, url string, wire *crash.Wire) (driver.Preparer[pgx.Tx], error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.DialFunc = wire.Dial
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return postgres.OpenParticipant(ctx, pool, "crash", nil)
})}

func TestKilledAtEveryRequest(t *testing.T) { t.Parallel(); preparedtest.Crashes(t, byPool, "branch") }

func TestParticipant(t *testing.T) {
	t.Parallel()
	runParticipant(t, byPool)
}

func TestStdParticipant(t *testing.T) {
	t.Parallel()
	runParticipant(t, byStd)
}

// TestWaitingBranches: a prepared branch is finished although others wait for its rows.
func TestWaitingBranches(t *testing.T) {
	t.Parallel()
	url := postgres.EmptyServer(t).URL()
	pool, err := postgres.OpenParticipant(t.Context(), poolAt(t, url+"&pool_max_conns=4"), "shop", nil)
	testbed.OK(t, err)
	preparedtest.Waiting(t, byPool.BankOf(t, pool, dbAt(t, url)))
	db := dbAt(t, url)
	db.SetMaxOpenConns(4)
	std, err := postgres.OpenStdParticipant(t.Context(), db, "std", nil)
	testbed.OK(t, err)
	preparedtest.Waiting(t, byStd.BankOf(t, std, dbAt(t, url)))
}

// poolAt is a pool of a URL, or nil without one.
func poolAt(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	if url == "" {
		return nil
	}
	pool, err := pgxpool.New(context.Background(), url)
	testbed.OK(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func dbAt(t testing.TB, url string) *sql.DB {
	t.Helper()
	if url == "" {
		return nil
	}
	db, err := sql.Open("pgx", url)
	testbed.OK(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

var participants atomic.Int64

func runParticipant[T any](t *testing.T, d preparedtest.Database[T]) {
	shared := postgres.EmptyServer(t)
	drivertest.RunParticipant(t, drivertest.ParticipantHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ParticipantBackend {
			server := shared
			if exclusive {
				server = postgres.EmptyServer(t)
			}
			n := participants.Add(1)
			table := fmt.Sprint("kept_", n)
			if _, err := dbAt(t, server.URL()).Exec(`create table ` + table + ` (k text primary key, v int)`); err != nil {
				t.Fatal(err)
			}
			return paths.At(server, func(t *testing.T, addr string) (drivertest.Branches, error) {
				url := "postgres://postgres@" + addr + "/postgres?sslmode=disable"
				p, db, err := d.Open(t.Context(), t, url, fmt.Sprint("n-", n), "")
				if err != nil {
					return nil, err
				}
				return drivertest.PreparerOf(p, func(ctx context.Context, tx T, key string, value int) error {
					return d.Exec(ctx, tx, fmt.Sprintf(`insert into %s values ('%s', %d) on conflict (k) do update set v = excluded.v`, table, key, value))
				}, func(ctx context.Context, key string) (value int, err error) {
					err = db.QueryRowContext(ctx, `select coalesce((select v from `+table+` where k = $1), 0)`, key).Scan(&value)
					return value, err
				}), nil
			})
		},
	})
}
