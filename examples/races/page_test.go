package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/guard/stock"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/generated"
	"github.com/interlock-dev/interlock/observe"
)

// TestPage checks that each code block of docs/how-to/remedies.md is a function of
// remedies_test.go, and that the page has each function, each race and its symptom.
func TestPage(t *testing.T) {
	t.Parallel()
	page := generated.CheckCode(t, "../../docs/how-to/remedies.md", "remedies_test.go")
	for _, r := range races {
		if !strings.Contains(page, "`"+r.name+"`") || !strings.Contains(page, r.symptom) {
			t.Errorf("the page does not have %s: %s", r.name, r.symptom)
		}
	}
}

// TestRemedies runs the code of the page on a database, and checks that each function
// does what the page describes, also when it is repeated.
func TestRemedies(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) { t.Parallel(); testRemediesOnPostgres(t) })
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		s := reached(t, onRedis)
		wants(t, stock.NewStore(redis.NewStock(s.redis, nil), nil).Set(t.Context(), "seat/12A", 1), nil)
		for range 2 {
			wants(t, bookSeat(t.Context(), s.redis), nil)
			wants(t, applyState(t.Context(), s.redis), nil)
		}
	})
	t.Run("mariadb", func(t *testing.T) {
		t.Parallel()
		s := reached(t, onMariaDB)
		wants(t, s.create(t.Context(), `create table item (id bigint primary key, price bigint)`, `insert into item values (7, 1999)`), nil)
		if price, err := readPriceCommitted(t.Context(), s.mariadb); price != 1999 || err != nil {
			t.Errorf("%d, %v", price, err)
		}
	})
}

func reached(t *testing.T, kind system) systems {
	t.Helper()
	s, done, err := connect(t.Context(), kind, servers[kind](t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(done)
	return s
}

func wants(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

func testRemediesOnPostgres(t *testing.T) {
	ctx, s := t.Context(), reached(t, onPostgres)
	pool := s.postgres
	wants(t, s.create(ctx,
		`create table account (id bigint primary key, balance bigint, version bigint)`, `insert into account values (42, 100, 1)`,
		`create table doctor (name text primary key, on_call bool)`, `insert into doctor values ('ada', true), ('bob', true)`,
		`create table orders (id bigint primary key, status text)`, `insert into orders values (42, 'new')`,
		`create table payment (id bigserial primary key, cents bigint)`), nil)
	wants(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		db := postgres.Tx(tx)
		return errors.Join(stock.Table{}.Create(ctx, db), version.Table{}.Create(ctx, db), sequence.Table{}.Create(ctx, db), once.Inbox{Consumer: "billing"}.Create(ctx, db),
			outbox.Table{}.Create(ctx, db), idempotency.Table{}.Create(ctx, db), fence.Table{}.Create(ctx, db),
			stock.Table{}.Set(ctx, db, "chair", 3))
	}), nil)
	one := func(query string) (value string) {
		wants(t, pool.QueryRow(ctx, query).Scan(&value), nil)
		return value
	}
	says := func(query, want string) {
		t.Helper()
		if got := one(query); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}

	wants(t, addOnTop(ctx, pool), nil)
	says(`select balance::text from account`, "130")
	wants(t, goHome(ctx, pool), nil)
	wants(t, pool.QueryRow(ctx, `update doctor set on_call = name = 'ada' returning name`).Scan(new(string)), nil)
	wants(t, goHome(ctx, pool), errLastDoctor)
	says(`select string_agg(name, ' ') from doctor where on_call`, "ada")
	wants(t, holdChairs(ctx, pool), nil)
	wants(t, holdChairs(ctx, pool), nil) // the same order
	says(`select held::text from interlock_stock`, "2")
	wants(t, applyEvent(ctx, pool), nil)
	wants(t, pool.QueryRow(ctx, `update orders set status = 'by hand' returning status`).Scan(new(string)), nil)
	wants(t, applyEvent(ctx, pool), nil)
	says(`select status from orders`, "by hand")
	m := letter{ID: "m1", Body: []byte("thirty")}
	for range 2 {
		wants(t, receiveOnce(ctx, pool, m), nil)
	}
	says(`select balance::text from account`, "100")

	first, second := letter{Key: "order/42", Seq: 1, Body: []byte("packed")}, letter{Key: "order/42", Seq: 2, Body: []byte("sent")}
	if err := receiveInSequence(ctx, pool, second); err == nil {
		t.Error("an event out of order was not rejected")
	}
	for _, m := range []letter{first, second, first} {
		wants(t, receiveInSequence(ctx, pool, m), nil)
	}
	says(`select status from orders`, "sent")

	testInSequence(ctx, t, pool)
	says(`select status from orders`, "returned")

	testOutboxOfThePage(ctx, t, pool)
	testPayOnce(t, pool)
	says(`select count(*)::text from payment`, "1")

	locks := newLocks(t)
	wants(t, withdrawUnderLock(ctx, pool, locks), nil)
	says(`select balance::text from account`, "70")
}

// testInSequence offers the events 1, 3, 2, 5, and 4 after it was skipped.
func testInSequence(ctx context.Context, t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	overdue, acknowledged := make(chan observe.SequenceGap, 1), make(chan int64, 9)
	orders, err := deliverInSequence(pool, func(g observe.SequenceGap) { overdue <- g })
	wants(t, err, nil)
	offered := func(seq int64, status string, want ...int64) {
		t.Helper()
		m := letter{Key: "order/43", Seq: seq, Body: []byte(status), Acknowledge: func() { acknowledged <- seq }}
		wants(t, offerMessage(ctx, orders, m), nil)
		for _, seq := range want {
			if got := <-acknowledged; got != seq {
				t.Errorf("%d is acknowledged, want %d", got, seq)
			}
		}
	}
	offered(1, "packed", 1)
	offered(3, "delivered")
	offered(2, "sent", 3, 2) // 3 is reported before the call returns
	offered(5, "returned")
	if g := <-overdue; g.From != 4 || g.To != 4 {
		t.Errorf("overdue: %+v", g)
	}
	if seq := <-acknowledged; seq != 5 {
		t.Errorf("%d is acknowledged, want 5", seq)
	}
	offered(4, "complained of", 4)
	wants(t, orders.Close(ctx), nil)
}

func newLocks(t *testing.T) *lock.Fenced {
	t.Helper()
	locks, err := lock.NewFenced(memory.NewSpace().Open(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locks.Close(context.WithoutCancel(t.Context())) })
	return locks
}

func testOutboxOfThePage(ctx context.Context, t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	wants(t, sendWithTheOrder(ctx, pool), nil)
	sending, stop := context.WithCancel(ctx)
	defer stop()
	var sent []string
	err := relayMessages(sending, pool, newLocks(t), func(_ context.Context, m outbox.Message) error {
		sent = append(sent, string(m.Payload))
		stop()
		return nil
	})
	if len(sent) != 1 || sent[0] != "paid" || !errors.Is(err, context.Canceled) {
		t.Errorf("sent %q, and then %v", sent, err)
	}
}

func testPayOnce(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	handler, err := payOnce(pool, func(*http.Request) string { return "alice" })
	wants(t, err, nil)
	var answers []string
	for range 2 {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader(`{}`))
		r.Header.Set("Idempotency-Key", "k1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		answers = append(answers, w.Body.String())
	}
	if answers[0] != "{\"payment\":1}\n" || answers[1] != answers[0] {
		t.Errorf("answers %q", answers)
	}
}

// The inputs of consumers.
type (
	event struct {
		Customer    string
		N           int
		Acknowledge func(error)
	}
	letter struct {
		ID, Key     string
		Seq         int64
		Body        []byte
		Acknowledge func()
	}
)

// TestInOrder runs the page's keyed consumer.
func TestInOrder(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var acknowledged int
	handled := map[string][]int{}
	var events []event
	for n := range 300 {
		events = append(events, event{[]string{"a", "b", "c"}[n%3], n, func(err error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				acknowledged++
			}
		}})
	}
	err := inOrder(t.Context(), events, func(_ context.Context, e event) error {
		mu.Lock()
		defer mu.Unlock()
		if before := handled[e.Customer]; len(before) > 0 && before[len(before)-1] >= e.N {
			t.Errorf("%d of %s after %d", e.N, e.Customer, before)
		}
		handled[e.Customer] = append(handled[e.Customer], e.N)
		return nil
	})
	if err != nil || acknowledged != len(events) {
		t.Errorf("%d acknowledged, %v", acknowledged, err)
	}
}
