package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) { crash.Main(m, roles) }

// bound limits each wait for a condition.
const bound = 20 * time.Second

// world is one database with a table of requests and one of effects.
type world struct {
	*databases.DB
	records *idempotency.SQL[driver.SQL]
	store   *idempotency.Store
}

// clients is one client of each database, for slow tests.
var clients = []string{databases.Pgx, databases.Maria}

// anyUnfinished lists some unfinished requests without an attempt.
var anyUnfinished = driver.IdempotencyQuery{Limit: 10}

// tx is the transaction of phases in these tests.
type tx = driver.SQL

func newWorld(t testing.TB, db *databases.DB, o *idempotency.Options) world {
	t.Helper()
	db.Do(t, idempotency.Table{}.Create)
	db.Exec(t, `create table effect (request varchar(255), phase varchar(64), attempt bigint)`)
	w := world{DB: db, records: idempotency.NewSQL(db, idempotency.Table{})}
	w.store = open(t, w.records, o)
	return w
}

func open(t testing.TB, records driver.Idempotency, o *idempotency.Options) *idempotency.Store {
	t.Helper()
	s, err := idempotency.New(records, o)
	ok(t, err)
	return s
}

// effect is the effect of a phase.
func effect(ctx context.Context, db tx, key, phase string, attempt int) error {
	_, err := db.Exec(ctx, fmt.Sprintf(`insert into effect values ('%s', '%s', %d)`, key, phase, attempt))
	return err
}

// phase runs a phase that leaves an effect and has a result.
func phase(ctx context.Context, on *idempotency.SQL[tx], name string) (string, error) {
	r := idempotency.From(ctx)
	return idempotency.Phase(ctx, on, name, func(ctx context.Context, db tx) (string, error) {
		return fmt.Sprintf("%s of attempt %d", name, r.Attempt()), effect(ctx, db, r.Key(), name, r.Attempt())
	})
}

// effects returns every effect of a request, as "phase by attempt".
func (w world) effects(t testing.TB, key string) string {
	t.Helper()
	var all []string
	w.Do(t, func(ctx context.Context, db driver.SQL) error {
		all = nil
		return db.Query(ctx, fmt.Sprintf(`select phase, attempt from effect where request = '%s' order by phase, attempt`, key), nil,
			func(scan func(...any) error) error {
				var phase string
				var attempt int64
				err := scan(&phase, &attempt)
				all = append(all, fmt.Sprintf("%s by %d", phase, attempt))
				return err
			})
	})
	return strings.Join(all, ", ")
}

// order is a call under a key.
func order(key string) idempotency.Call {
	return idempotency.Call{Scope: "alice", Operation: "POST /orders", Key: key, Fingerprint: idempotency.Fingerprint([]byte("order"))}
}

func answer(status int, body string) idempotency.Response {
	return idempotency.Response{Status: status, Header: map[string][]string{"Content-Type": {"text/plain"}}, Body: []byte(body)}
}

var ok, wantKind = testbed.OK, testbed.WantKind

func wantAnswer(t testing.TB, got idempotency.Response, err error, body string, replayed bool) {
	t.Helper()
	if err != nil || string(got.Body) != body || got.Replayed != replayed || got.Header.Get("Content-Type") != "text/plain" {
		t.Errorf("%d %v %q (replayed %v), %v; want %q (%v)", got.Status, got.Header, got.Body, got.Replayed, err, body, replayed)
	}
}

// as requires an error of a type.
func as[E error](t testing.TB, err error) (e E) {
	t.Helper()
	if !errors.As(err, &e) {
		t.Errorf("%v, want a %T", err, e)
	}
	return e
}

// cost returns the counts since the last call.
func cost(c *databases.Counted) string {
	defer c.Reset()
	return fmt.Sprintf("%d begun, %d statements, %d commits", c.Begun.Load(), c.Statements.Load(), c.Commits.Load())
}

// never is the function of a request that must be answered without it.
func never(context.Context) (idempotency.Response, error) {
	return idempotency.Response{}, errors.New("it was run")
}
