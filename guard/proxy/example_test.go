package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/claim/partition/route"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/proxy"
	"github.com/interlock-dev/interlock/guard/wire"
)

// Calls to an API that checks no token, made under a lock.
func ExampleNewUnrecorded() {
	ctx := context.Background()
	bank := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fmt.Println("paid") }))
	defer bank.Close()
	space := memory.NewSpace() // or redis.NewFence, or etcd.NewFence
	d := space.Open(nil)
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)

	calls := proxy.NewUnrecorded(fence.NewStore(space.Fence()), nil)
	transport := proxy.NewTransport(&proxy.TransportOptions{KeyHeader: "Idempotency-Key"})
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	pay := func(ctx context.Context, _ *proxy.Call) (int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, bank.URL, strings.NewReader("30"))
		if err != nil {
			return 0, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		return resp.StatusCode, nil
	}
	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		fmt.Println(calls.Do(ctx, c, "account/42", "payout/7", pay))
		newer, _ := c.Token().Next() // another holder's, after a pause that we did not notice
		_ = space.Fence().Enter(ctx, driver.Raise{Resource: "account/42", Token: newer})
		_, err := calls.Do(ctx, c, "account/42", "payout/8", pay)
		return err
	})
	fmt.Println("overtaken, not sent:", errors.Is(err, interlock.ErrStaleToken))
	// Output:
	// paid
	// 200 <nil>
	// overtaken, not sent: true
}

// The set-up of a deployment, and the treatment of calls that stay in doubt.
func ExampleNewRecorded() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/bank")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	db, table := postgres.Pool(pool), proxy.Calls{}
	tx, err := db.Begin(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(table.Create(ctx, tx), fence.Table{}.Create(ctx, tx), tx.Commit(ctx)); err != nil {
		log.Fatal(err)
	}
	calls, err := proxy.NewRecorded(db, fence.Table{}, table, nil)
	if err != nil {
		log.Fatal(err)
	}
	var c interlock.Claim // of a lock, a partition or a request
	_, err = calls.Do(ctx, c, "account/42", "payout/7", func(context.Context, *proxy.Call) (int, error) { return 200, nil })
	if doubt, found := errors.AsType[*proxy.InDoubtError](err); found {
		log.Print("ask the bank whether it was paid, and tell table.Settle: ", doubt)
	}
}

// A proxy for callers that send their tokens with their requests.
func ExampleHandler() {
	var calls *proxy.Caller // from NewRecorded
	bank, err := url.Parse("https://api.bank.example/v1")
	if err != nil {
		log.Fatal(err)
	}
	account := func(r *http.Request) (string, error) { return "account/" + r.PathValue("id"), nil }
	http.Handle("/accounts/{id}/", proxy.Handler(calls, bank, account, &proxy.HandlerOptions{
		Transport: proxy.NewTransport(&proxy.TransportOptions{KeyHeader: "Idempotency-Key"}),
		Wire:      &wire.Options{Longest: 30 * time.Second},
	}))
}

// The single-owner form: requests for a key are sent to the one member that owns it. It makes
// the calls under its claim on the partition, one at a time.
func Example_queue() {
	ctx := context.Background()
	bank := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		fmt.Printf("the bank pays %s\n", text)
	}))
	defer bank.Close()
	space := memory.NewSpace()
	d := space.Open(nil)
	defer d.Close(ctx)
	g, err := partition.Join(ctx, d, space.Values(), "payouts", partition.Layout{Partitions: 4}, &partition.Options{Identity: "worker-1"})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Leave(ctx)

	calls := proxy.NewUnrecorded(fence.NewStore(space.Fence()), nil)
	transport := proxy.NewTransport(nil)
	defer transport.CloseIdleConnections()
	account := func(r *http.Request) (string, error) { return r.URL.Path, nil }
	worker := httptest.NewServer(route.Handler(g, account, func(w http.ResponseWriter, r *http.Request) {
		c, _ := route.Claim(r.Context())
		// The claim and the mark are on the partition: its keys move together.
		status, err := calls.Do(r.Context(), c, c.Name(), r.Header.Get("Idempotency-Key"), func(ctx context.Context, _ *proxy.Call) (int, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, bank.URL, r.Body)
			if err != nil {
				return 0, err
			}
			resp, err := (&http.Client{Transport: transport}).Do(req)
			if err != nil {
				return 0, err
			}
			defer resp.Body.Close()
			return resp.StatusCode, nil
		})
		if !wire.Refuse(w, err) {
			w.WriteHeader(status)
		}
	}, nil))
	defer worker.Close()

	if _, err := g.Map().Await(ctx, "/account/42", 0); err != nil {
		log.Fatal(err)
	}
	resp, err := http.Post(worker.URL+"/account/42", "text/plain", strings.NewReader("30"))
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode)
	http.DefaultClient.CloseIdleConnections()
	// Output:
	// the bank pays 30
	// 200
}
