package cli_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// An administrator applies the output of schema twice. Then a role with no other
// rights has everything that locks, guards, an outbox and a journal need.
func TestSchemaIsEnough(t *testing.T) {
	t.Parallel()
	program(t)
	ctx := t.Context()
	enough := func(t *testing.T, url string) {
		run(t, 0, "--backend", url, "lock", "job", "--", program(t), "--backend", url, "guard", "enter", "job")
		run(t, 0, "--backend", url, "elect", "job", "--accept-weakness", "--", "true")
		run(t, 0, "--backend", url, "outbox", "status")
		run(t, 0, "--backend", url, "saga", "start", "order/1", "order")
		run(t, 0, "--backend", url, "saga", "abort", "order/1", "--reason", "a test")
		run(t, 0, "--backend", url, "locks", "ls")
	}
	t.Run("postgres", func(t *testing.T) {
		server := testbed.Postgres(t)
		conn, err := pgx.Connect(ctx, server.URL())
		testbed.OK(t, err)
		defer conn.Close(context.Background())
		statements, _ := run(t, 0, "schema", "postgres", "--grant-to", "app")
		for _, s := range []string{"create role app login; revoke create on schema public from public", statements, statements} {
			if _, err := conn.Exec(ctx, s, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
		}
		other, _ := run(t, 0, "schema", "postgres", "--only", "fence", "--grant-to", "App")
		var granted bool
		if _, err := conn.Exec(ctx, `create role "App"; `+other, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		if err := conn.QueryRow(ctx, `select has_table_privilege('App', 'interlock_fence', 'select')`).Scan(&granted); err != nil || !granted {
			t.Errorf("the rights of the role App went to another: %v, %s", err, other)
		}
		url := strings.Replace(server.URL(), "postgres@", "app@", 1)
		enough(t, url)
		run(t, 0, "--backend", url+"&mode=table", "lock", "job", "--", "true")
		pool, err := pgxpool.New(ctx, url)
		testbed.OK(t, err)
		defer pool.Close()
		if err := addOne(ctx, postgres.Pool(pool)); err != nil {
			t.Error(err)
		}
		createAll(t, postgres.Pool(pool))
	})
	t.Run("mariadb", func(t *testing.T) {
		server := testbed.MariaDB(t)
		statements, _ := run(t, 0, "schema", "mysql", "--grant-to", "app")
		db, err := sql.Open("mysql", server.URL()+"?multiStatements=true")
		testbed.OK(t, err)
		defer db.Close()
		for _, s := range []string{"create user app@'%'", strings.ReplaceAll(statements, "to app", "to app@'%'"), strings.ReplaceAll(statements, "to app", "to app@'%'")} {
			if _, err := db.ExecContext(ctx, s); err != nil {
				t.Fatal(err)
			}
		}
		url := "mysql://app@" + server.Addr() + "/test"
		enough(t, url)
		run(t, 0, "--backend", url+"?mode=table", "lock", "job", "--", "true")
		own, err := sql.Open("mysql", "app@tcp("+server.Addr()+")/test")
		testbed.OK(t, err)
		defer own.Close()
		if err := addOne(ctx, mysql.DB(own)); err != nil {
			t.Error(err)
		}
		createAll(t, mysql.DB(own))
	})
}

// createAll creates all tables, as services do when they start: those that exist need no right.
func createAll[T any](t *testing.T, db driver.Beginner[T]) {
	t.Helper()
	for _, p := range backend.Parts {
		if err := driver.Create(t.Context(), db, p); err != nil {
			t.Errorf("%s, whose tables exist: %v", p.Name, err)
		}
	}
	if err := driver.Create(t.Context(), db, outbox.Table{}, fence.Table{Name: "other"}); err == nil {
		t.Error("the role may create tables")
	}
}

func addOne[T any](ctx context.Context, db driver.Beginner[T]) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	return errors.Join(outbox.Table{}.Add(ctx, tx, driver.Message{ID: "m", Topic: "orders"}), tx.Commit(ctx))
}

// Wrong names are rejected, and parts can be chosen.
func TestSchemaParts(t *testing.T) {
	t.Parallel()
	program(t)
	run(t, 64, "schema", "oracle")
	run(t, 64, "schema", "postgres", "--only", "fences")
	run(t, 64, "schema", "postgres", "--grant-to", "app; drop table x")
	text, _ := run(t, 0, "schema", "mysql", "--only", "fence")
	if strings.Count(text, "create table") != 2 || strings.Contains(text, "grant") {
		t.Error(text)
	}
}
