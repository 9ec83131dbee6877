package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestMain is also the entry point of services that a run starts.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args[1:], "-serve") {
		main()
		return
	}
	testbed.Main(m)
}

// TestRuns kills each process once, and all connections to the database each time; every order ends, and
// nothing is lost or done twice.
func TestRuns(t *testing.T) {
	for _, broker := range []struct {
		scheme string
		start  func(testing.TB, ...string) *testbed.Server
	}{{"kafka", testbed.Kafka}, {"nats", testbed.NATS}} {
		t.Run(broker.scheme, func(t *testing.T) {
			t.Parallel()
			server := testbed.Shared(t, broker.start)
			url := databases.Open(t, testbed.Shared(t, testbed.Postgres), databases.Pgx).URL
			s := settings{broker: broker.scheme + "://" + server.Addr(), postgres: url, name: rand.Text()[:12], lease: 2 * time.Second, patience: 2 * time.Minute}
			ctx, cancel := context.WithTimeout(t.Context(), s.patience)
			defer cancel()
			out := disconnecting{t: t, url: url}
			err := s.play(ctx, 60, &out)
			t.Log(out.String())
			if err != nil || !strings.Contains(out.String(), "60 orders: 40 completed, 20 compensated; 20 pieces left") || strings.Count(out.String(), "killed") != 4 {
				t.Error(err)
			}
			convicts(t, url)
		})
	}
}

// disconnecting is the output of a run. Each write kills all connections to its database.
type disconnecting struct {
	bytes.Buffer
	t   *testing.T
	url string
}

func (d *disconnecting) Write(p []byte) (int, error) {
	conn, err := pgx.Connect(d.t.Context(), d.url)
	testbed.OK(d.t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(d.t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`)
	testbed.OK(d.t, err)
	return d.Buffer.Write(p)
}

// TestStartFails checks that a run can end after a process did not start.
func TestStartFails(t *testing.T) {
	f := fleet{settings{name: "\x00"}, map[string]*process{}}
	if err := f.start("shop"); err == nil {
		t.Error("it started with an argument that no program can have")
	}
	f.kill()
}

// convicts inserts a charge without an order, which the audit must find.
func convicts(t *testing.T, url string) {
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), `insert into choreography_charges values ('0')`); err != nil { // its card was declined
		t.Fatal(err)
	}
	if _, err := audit(t.Context(), pool, settings{}.tracker(), 60, 60); !errors.Is(err, errConvicted) || !strings.Contains(fmt.Sprint(err), "order 0 is compensated") {
		t.Errorf("audit: %v", err)
	}
}
