// Command idempotent serves POST /charges, which takes effect once however often it is
// retried. See docs/tutorials/idempotent.md.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"net"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/idempotency"
)

// Charge is an amount that an account pays.
type Charge struct {
	ID      int    `json:"id"`
	Account string `json:"account"`
	Amount  int    `json:"amount"`
}

func main() {
	database := flag.String("postgres", "postgres://postgres@127.0.0.1/shop", "where the charges are")
	listen := flag.String("listen", "127.0.0.1:8080", "address of the endpoint")
	flag.Parse()
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, *database)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := postgres.Create(ctx, pool, idempotency.Table{}); err != nil {
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS charges (
		id serial PRIMARY KEY, account text NOT NULL, amount int NOT NULL)`); err != nil {
		log.Fatal(err)
	}

	records := idempotency.NewSQL(postgres.Pool(pool), idempotency.Table{})
	store, err := idempotency.New(records, nil)
	if err != nil {
		log.Fatal(err)
	}
	charges := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { charge(w, r, records) })
	http.Handle("POST /charges", idempotency.Handler(store, idempotency.SharedScope, charges, nil))
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	log.Print("listening on ", l.Addr())
	log.Fatal(http.Serve(l, nil))
}

// charge handles one attempt. The row and the answer are committed in one transaction; the
// middleware sends the answer.
func charge(w http.ResponseWriter, r *http.Request, records *idempotency.SQL[pgx.Tx]) {
	var c Charge
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil || c.Account == "" || c.Amount <= 0 {
		http.Error(w, `want {"account": "ann", "amount": 30}`, http.StatusBadRequest)
		return
	}
	_, err := idempotency.LastPhase(r.Context(), records, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
		err := tx.QueryRow(ctx, "INSERT INTO charges (account, amount) VALUES ($1, $2) RETURNING id", c.Account, c.Amount).Scan(&c.ID)
		body, _ := json.Marshal(c)
		header := http.Header{"Content-Type": {"application/json"}}
		return idempotency.Response{Status: http.StatusCreated, Header: header, Body: body}, err
	})
	if err != nil {
		log.Print(err)
		http.Error(w, "the outcome is unknown; retry with the same key", http.StatusServiceUnavailable)
	}
}
