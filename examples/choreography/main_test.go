package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestMain is also the entry point of services that a run starts.
func TestMain(m *testing.M) {
	for _, arg := range os.Args[1:] {
		if strings.HasPrefix(arg, "-serve=") {
			main()
		}
	}
	testbed.Main(m)
}

// TestRuns kills each process once; every order ends, and nothing is lost or done twice.
func TestRuns(t *testing.T) {
	for _, broker := range []struct {
		scheme string
		start  func(testing.TB, ...string) *testbed.Server
	}{{"kafka", testbed.Kafka}, {"nats", testbed.NATS}} {
		t.Run(broker.scheme, func(t *testing.T) {
			t.Parallel()
			server := testbed.Shared(t, broker.start)
			url := databases.Open(t, testbed.Shared(t, testbed.Postgres), databases.Pgx).URL
			var out, errs bytes.Buffer
			code := run(t.Context(), []string{"-broker", broker.scheme + "://" + server.Addr(), "-postgres", url, "-lease", "2s", "-orders", "60"}, &out, &errs)
			t.Logf("%s%s", &out, &errs)
			if code != 0 || !strings.Contains(out.String(), "60 orders: 40 completed, 20 compensated; 20 pieces left") || strings.Count(out.String(), "killed") != 4 {
				t.Errorf("code %d", code)
			}
			convicts(t, url)
		})
	}
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

func TestUsage(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-lease", "x"}, &out, &errs); code != 2 || errs.Len() == 0 {
		t.Errorf("%d, %s", code, &errs)
	}
	if code := run(t.Context(), []string{"-postgres", "postgres://127.0.0.1:1/x"}, &out, &errs); code != 1 {
		t.Errorf("%d, %s", code, &errs)
	}
}
