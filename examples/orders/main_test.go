package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

func TestMain(m *testing.M) { crash.Main(m, map[string]crash.Role{"shop": keepShop}) }

// patience bounds every wait. No step needs a tenth of it.
const patience = 30 * time.Second

var ok = testbed.OK

// world creates a database with the tables of shop and bank.
func world(tb testing.TB) (url string, pool *pgxpool.Pool) {
	tb.Helper()
	url = databases.Open(tb, testbed.Shared(tb, testbed.Postgres), databases.Pgx).URL
	pool, err := pgxpool.New(tb.Context(), url)
	ok(tb, err)
	tb.Cleanup(pool.Close)
	ok(tb, createTables(tb.Context(), pool))
	return url, pool
}

// open starts a shop whose bank is at an address.
func open(tb testing.TB, pool *pgxpool.Pool, bank string) *shop {
	tb.Helper()
	s := newShop(pool.Config().ConnString(), pool, bank, io.Discard)
	transport := &http.Transport{}
	s.caller.Client = &http.Client{Transport: transport}
	leave, err := s.start(tb.Context())
	ok(tb, err)
	tb.Cleanup(func() { leave(); transport.CloseIdleConnections() })
	return s
}

// bounded returns a context that bounds the waits of the test.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// want checks the lamps in stock, the money on the card, and the numbers of parcels and
// letters.
func want(tb testing.TB, pool *pgxpool.Pool, what string, lamps, cents, parcels, letters int) {
	tb.Helper()
	var got [4]int
	ok(tb, pool.QueryRow(context.WithoutCancel(tb.Context()), `select
		(select units from shop_stock), (select cents from shop_bank_account),
		(select count(*) from shop_parcel), (select count(*) from shop_letter)`).Scan(&got[0], &got[1], &got[2], &got[3]))
	if got != [4]int{lamps, cents, parcels, letters} {
		tb.Errorf("%s: %d lamps, %d cents, %d parcels and %d letters; want %d, %d, %d and %d",
			what, got[0], got[1], got[2], got[3], lamps, cents, parcels, letters)
	}
}

// TestExample runs the program twice: one order ships, the card of one is refused, and one
// exceeds the stock. The second run finds the orders, and changes nothing.
func TestExample(t *testing.T) {
	url, pool := world(t)
	run := func() string {
		var out strings.Builder
		ok(t, trade(t.Context(), url, &out))
		want(t, pool, out.String(), 8, 9940, 1, 1)
		return out.String()
	}
	if got := run(); got != output {
		t.Errorf("it printed\n%s\nnot\n%s", got, output)
	}
	ends := func(text string) (lines []string) {
		for line := range strings.Lines(text) {
			if strings.Contains(line, "SUCCEEDED") || strings.Contains(line, "COMPENSATED") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	if got := ends(run()); fmt.Sprint(got) != fmt.Sprint(ends(output)) {
		t.Errorf("the second run printed %q", got)
	}
}

const output = `ann: 2 of lamp reserved
ann: 60 charged
ann: shipped
ann: SUCCEEDED, letter: 2 of lamp are on their way
bob: 1 of lamp reserved
bob: COMPENSATED: charge: http: call branch "order%2Fbob/charge/do": answered 409 Conflict: the bank refuses the card
eve: COMPENSATED: reserve: there are not so many left
`

// TestLostReply loses the answer of a charge. The shop repeats the call, the bank has
// charged once, and the order ends as without the fault.
func TestLostReply(t *testing.T) {
	t.Parallel()
	_, pool := world(t)
	address, closeBank, err := serveBank(newBank(postgres.Pool(pool)))
	ok(t, err)
	t.Cleanup(closeBank)
	proxy := testbed.NewProxy(t, strings.TrimPrefix(address, "http://"))
	s := open(t, pool, "http://"+proxy.Addr())
	calls := 0
	s.caller.Client.Transport = counted{s.caller.Client.Transport, &calls}
	proxy.CutAfter(0)
	outcome, err := s.orders.Do(bounded(t), s.engine, "order/1", Order{"ann", "lamp", 2, 60, "visa"})
	if err != nil || outcome.State != saga.Succeeded {
		t.Fatalf("%s, %v", outcome.State, err)
	}
	if calls < 2 {
		t.Errorf("the bank was called %d times: no answer was lost", calls)
	}
	_, err = s.letter(bounded(t), "ann")
	ok(t, err)
	want(t, pool, "", 8, 9940, 1, 1)
}

// counted counts sequential requests.
type counted struct {
	http.RoundTripper
	n *int
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	*c.n++
	return c.RoundTripper.RoundTrip(r)
}

// TestLastUnits has two shops, each of which owns a part of the orders, take twenty orders
// concurrently for ten lamps. Ten are sold and paid, and nothing is left over or missing.
func TestLastUnits(t *testing.T) {
	t.Parallel()
	_, pool := world(t)
	address, closeBank, err := serveBank(newBank(postgres.Pool(pool)))
	ok(t, err)
	t.Cleanup(closeBank)
	shops := []*shop{open(t, pool, address), open(t, pool, address)}
	ctx := bounded(t)
	var mu sync.Mutex
	ends := map[saga.State]int{}
	var work sync.WaitGroup
	for i := range 20 {
		work.Go(func() {
			s, customer := shops[i%len(shops)], fmt.Sprint("customer ", i)
			outcome, err := s.orders.Do(ctx, s.engine, "order/"+customer, Order{customer, "lamp", 1, 30, "visa"})
			if outcome.State == saga.Succeeded {
				_, err = s.letter(ctx, customer)
			}
			mu.Lock()
			defer mu.Unlock()
			if ends[outcome.State]++; outcome.State == saga.Succeeded && err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if ends[saga.Succeeded] != 10 || ends[saga.Compensated] != 10 {
		t.Errorf("%v", ends)
	}
	want(t, pool, "", 0, 9700, 10, 10)
}

// keepShop runs the process that is killed: shop and bank, with a point at each statement
// of their barriers and around each commit. It places an order, waits for its letter, and
// then places another one that is refused.
func keepShop(ctx context.Context, at *crash.Points, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pool, err := pgxpool.New(ctx, args[0])
	if err != nil {
		return err
	}
	defer pool.Close()
	db := crash.BeginnerAt(postgres.Pool(pool), at)
	address, closeBank, err := serveBank(newBank(db))
	if err != nil {
		return err
	}
	defer closeBank()
	s := newShop(args[0], pool, address, io.Discard)
	s.db = db
	leave, err := s.start(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for _, o := range []Order{{"ann", "lamp", 2, 60, "visa"}, {"bob", "lamp", 1, 30, "stolen"}} {
		if err := s.make(ctx, o, io.Discard); err != nil {
			return err
		}
	}
	return nil
}

// TestKilled kills a process at every fifth of its points, or at all with
// INTERLOCK_CRASHES=full; txn/saga kills at each. The next process completes both orders:
// the first is charged, shipped and has one letter, the second has returned its
// lamp.
func TestKilled(t *testing.T) {
	t.Parallel()
	var points int
	t.Run("at each point", func(t *testing.T) {
		points = crash.Share(t, "shop", 0, 5, func(tb testing.TB) crash.Scene {
			url, pool := world(tb)
			return crash.Scene{Args: []string{url}, Want: func(tb testing.TB) {
				tb.Helper()
				want(tb, pool, "", 8, 9940, 1, 1)
				unfinished(tb, pool)
			}}
		})
	})
	if t.Logf("%d points", points); points < 20 {
		t.Errorf("%d points", points)
	}
}

// unfinished fails the test if an order has not ended.
func unfinished(tb testing.TB, pool *pgxpool.Pool) {
	tb.Helper()
	j, err := journal.New(journal.NewTable(postgres.Pool(pool), journalName), &journal.Options{Shards: shards})
	ok(tb, err)
	defer j.Close()
	for o, err := range saga.NewOperator(j).List(tb.Context(), saga.Filter{Unfinished: true}) {
		tb.Errorf("%s is %s, %v", o.ID, o.State, err)
	}
}
