// Command receiver takes the events of command outbox, and handles each once. See
// docs/tutorials/outbox.md.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox/webhook"
	"github.com/interlock-dev/interlock/guard/once"
)

func main() {
	database := flag.String("postgres", "postgres://postgres@127.0.0.1/shop", "where letters are")
	listen := flag.String("listen", "127.0.0.1:8090", "address of the receiver")
	flag.Parse()
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, *database)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	inbox := once.Inbox{Consumer: "letters"}
	if err := postgres.Create(ctx, pool, inbox); err != nil {
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS letters (event text NOT NULL)"); err != nil {
		log.Fatal(err)
	}
	verifier := webhook.Verifier{Secrets: [][]byte{[]byte("a secret that both sides know, 32")}}
	http.HandleFunc("POST /events", func(w http.ResponseWriter, r *http.Request) {
		m, err := verifier.Read(r)
		if err != nil {
			http.Error(w, "not signed by the sender", http.StatusUnauthorized)
			return
		}
		outcome, err := once.Tx(r.Context(), postgres.Pool(pool), inbox, once.Message{ID: m.ID, Payload: m.Payload},
			func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO letters VALUES ($1)", string(m.Payload))
				return err
			})
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		log.Print(string(m.Payload), " ", outcome)
	})
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	log.Print("listening on ", l.Addr())
	log.Fatal(http.Serve(l, nil))
}
