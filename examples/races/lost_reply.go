package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/history"
)

// A client requests a payment over HTTP, and the answer is lost, or arrives after a
// proxy has repeated the request. The client cannot know the outcome, repeats the
// request, and has paid twice.
//
// The remedy is a key that the client chooses once and sends with every attempt. The
// server pays once. It answers later attempts with the first answer, or with an error
// to retry later while the first is in progress.
var lostReply = race{
	name:    "lost-reply",
	symptom: "a customer whose client or proxy retried has paid twice",
	remedy:  "guard/idempotency: Handler, and LastPhase for the effect",
	system:  onPostgres,
	prepare: func(ctx context.Context, s systems) error {
		err := s.create(ctx, `create table if not exists race_payment (id bigserial primary key, request text not null)`)
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, s.postgres, func(tx pgx.Tx) error { return requests.Create(ctx, postgres.Tx(tx)) })
	},
	broken: paying(func(s *scene, pauses pauses) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			err := pgx.BeginFunc(r.Context(), s.postgres, func(tx pgx.Tx) error { return pay(r, tx, pauses) })
			answer(w, err)
		}), nil
	}),
	fixed: paying(func(s *scene, pauses pauses) (http.Handler, error) {
		records := idempotency.NewSQL(postgres.Pool(s.postgres), requests)
		store, err := idempotency.New(records, nil)
		return idempotency.Handler(store, idempotency.SharedScope, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, err := idempotency.Phase(r.Context(), records, "pay", func(_ context.Context, tx pgx.Tx) (bool, error) {
				return true, pay(r, tx, pauses)
			})
			answer(w, err)
		}), nil), err
	}),
	judge: history.CheckEffects,
	rule:  history.RuleOnce,
}

var requests = idempotency.Table{Name: "race_request"}

// paying drops the answers to some attempts, during or after their work. Then the
// client repeats the request until it has an answer.
func paying(open func(*scene, pauses) (http.Handler, error)) twin {
	return func(ctx context.Context, s *scene) (err error) {
		attempts, payment, waits := s.workers(4), s.name("payment"), pauses{}
		handler, err := open(s, waits)
		if err != nil {
			return err
		}
		c, err := newClient(handler)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, afterwards(ctx, c.close)) }()
		var actors []actor
		for _, name := range attempts {
			waits[name] = make(chan func(string), 1)
			actors = append(actors, actor{name, func(ctx context.Context, pause func(string)) error {
				waits[name] <- pause
				return s.ask(ctx, c, name, payment, "its answer is lost")
			}})
		}
		order := s.rounds(2, attempts) // all at once
		if s.rand.IntN(2) == 0 {
			slices.Sort(order) // one after the other
		}
		if err := s.act(ctx, order, actors...); err != nil {
			return err
		}
		if err := s.ask(ctx, c, "again", payment, ""); err != nil {
			return err
		}
		return s.findPayments(ctx, payment)
	}
}

// pauses has the pause functions of the client's attempts, for the server.
type pauses map[string]chan func(string)

// pay makes the payment.
func pay(r *http.Request, tx pgx.Tx, waits pauses) error {
	select {
	case pause := <-waits[r.Header.Get("Attempt")]:
		pause("the payment is due")
	default:
	}
	_, err := tx.Exec(r.Context(), `insert into race_payment (request) values ($1)`, r.Header.Get("Idempotency-Key"))
	return err
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "paid")
}

// ask makes one attempt. If its answer is lost, the outcome is unknown.
func (s *scene) ask(ctx context.Context, c *client, attempt, payment, lost string) error {
	call := s.told.Invoke(history.Event{Lane: attempt, Op: history.OpAsk, ID: payment})
	status, err := c.post(ctx, attempt, payment)
	switch {
	case err != nil:
		return err
	case lost != "":
		call.Info(lost)
	case status == http.StatusOK:
		call.OK("")
	default:
		call.Fail(http.StatusText(status))
	}
	return nil
}

func (s *scene) findPayments(ctx context.Context, payment string) error {
	var n int
	err := s.postgres.QueryRow(ctx, `select count(*) from race_payment where request = $1`, payment).Scan(&n)
	for range n {
		s.told.Record(history.Event{Lane: "-", Kind: history.State, Op: history.OpEffect, ID: payment})
	}
	return err
}
