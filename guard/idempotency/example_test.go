package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/observe"
)

// A payment that is requested twice is made once. The second answer is the first.
func ExampleStore() {
	ctx := context.Background()
	store, err := idempotency.New(memory.NewIdempotency(), nil) // or an SQL, or Redis
	if err != nil {
		log.Fatal(err)
	}
	payment := 0
	pay := func(ctx context.Context) (idempotency.Response, error) {
		payment++
		return idempotency.Response{Status: 201, Body: fmt.Appendf(nil, "payment %d", payment)}, nil
	}
	call := idempotency.Call{Scope: "alice", Operation: "pay", Key: "8e03978e", Fingerprint: idempotency.Fingerprint([]byte("30 EUR"))}
	for range 2 {
		response, err := store.Do(ctx, call, pay)
		fmt.Printf("%s, replayed: %v, %v\n", response.Body, response.Replayed, err)
	}
	call.Fingerprint = idempotency.Fingerprint([]byte("40 EUR"))
	_, err = store.Do(ctx, call, pay)
	fmt.Println(err)
	// Output:
	// payment 1, replayed: false, <nil>
	// payment 1, replayed: true, <nil>
	// key "8e03978e" was used for another request
}

// A retry continues after the last recorded step.
func ExampleStep() {
	ctx := context.Background()
	store, err := idempotency.New(memory.NewIdempotency(), nil)
	if err != nil {
		log.Fatal(err)
	}
	down := true
	order := func(ctx context.Context) (idempotency.Response, error) {
		charge, err := idempotency.Step(ctx, "charge", func(ctx context.Context) (string, error) {
			key := idempotency.From(ctx).Key() // for the payment service, which has its own keys
			fmt.Println("charging under", key)
			return "ch_1", nil
		})
		if err != nil {
			return idempotency.Response{}, err
		}
		if down {
			return idempotency.Response{}, errors.New("the warehouse is down")
		}
		return idempotency.Response{Status: 201, Body: []byte("sent, paid by " + charge)}, nil
	}
	call := idempotency.Call{Operation: "POST /orders", Key: "k", Fingerprint: "three books"}
	_, err = store.Do(ctx, call, order)
	fmt.Println(err)
	down = false
	response, err := store.Do(ctx, call, order)
	fmt.Printf("%s %v\n", response.Body, err)
	// Output:
	// charging under k
	// the warehouse is down
	// sent, paid by ch_1 <nil>
}

// A handler with the guard, and a client that sends a request twice.
func ExampleHandler() {
	store, err := idempotency.New(memory.NewIdempotency(), nil)
	if err != nil {
		log.Fatal(err)
	}
	order := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "order 1")
	})
	server := httptest.NewServer(idempotency.Handler(store, idempotency.SharedScope, order, nil))
	defer server.Close()
	for _, key := range []string{`"8e03978e"`, "8e03978e", ""} {
		r, err := http.NewRequest("POST", server.URL+"/orders", strings.NewReader("three books"))
		if err != nil {
			log.Fatal(err)
		}
		r.Header.Set("Idempotency-Key", key)
		if key == "" {
			r.Header.Del("Idempotency-Key")
		}
		answer, err := server.Client().Do(r)
		if err != nil {
			log.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		fmt.Println(answer.StatusCode, answer.Header.Get("Idempotency-Replayed"), strings.TrimSpace(string(body)))
	}
	// Output:
	// 201  order 1
	// 201 true order 1
	// 400  {"type":"about:blank","title":"An Idempotency-Key is required","status":400,"detail":"Choose one that is new, and send it again with each retry.","reason":"key-missing"}
}

// The charge and its record are one transaction, and so are the shipment, its record
// and the answer. The table is made once, by idempotency.Table{}.Create.
func ExamplePhase() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	records := idempotency.NewSQL(postgres.Pool(pool), idempotency.Table{})
	store, err := idempotency.New(records, nil)
	if err != nil {
		log.Fatal(err)
	}
	order := func(ctx context.Context) (idempotency.Response, error) {
		charge, err := idempotency.Phase(ctx, records, "charge", func(ctx context.Context, tx pgx.Tx) (id int64, err error) {
			err = tx.QueryRow(ctx, `insert into charge (cents) values (3000) returning id`).Scan(&id)
			return id, err
		})
		if err != nil {
			return idempotency.Response{}, err
		}
		return idempotency.LastPhase(ctx, records, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
			_, err := tx.Exec(ctx, `insert into shipment (charge) values ($1)`, charge)
			return idempotency.Response{Status: 201, Body: fmt.Appendf(nil, "paid by %d", charge)}, err
		})
	}
	_, err = store.Do(ctx, idempotency.Call{Operation: "order", Key: "message 17", Fingerprint: "three books"}, order)
	if busy, found := errors.AsType[*idempotency.InFlightError](err); found {
		fmt.Println("another attempt is at work; ask again within", busy.Remaining)
	}
}

// Background work of a service: it finishes requests whose client has gone, removes old answers,
// and reports requests that cannot be finished.
func ExampleCompleter() {
	ctx, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	store, err := idempotency.New(memory.NewIdempotency(), &idempotency.Options{Hooks: &observe.Idempotency{
		Unfinished: func(e observe.IdempotencyUnfinished) { log.Println("unfinished:", e.Operation, e.Key, e.Err) },
	}})
	if err != nil {
		log.Fatal(err)
	}
	order := func(ctx context.Context) (idempotency.Response, error) {
		input := idempotency.From(ctx).Input() // HandlerOptions.KeepBody keeps it
		return idempotency.Response{Status: 201, Body: input}, nil
	}
	completer := idempotency.NewCompleter(store, map[string]idempotency.Func{"POST /orders": order}, nil)
	reaper := idempotency.NewReaper(store, nil)
	var running sync.WaitGroup
	running.Go(func() { _ = reaper.Run(ctx) })
	fmt.Println(completer.Run(ctx))
	running.Wait()
	// Output: context deadline exceeded
}
