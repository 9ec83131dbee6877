package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/flow/keyed"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/guard/isolation"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/guard/stock"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/observe"
)

// The bodies of these functions are the code of docs/how-to/remedies.md, verbatim,
// and run on real servers: see page_test.go.

var errLastDoctor, errTaken = errors.New("nobody else is on call"), errors.New("it is taken")

func addOnTop(ctx context.Context, pool *pgxpool.Pool) error {
	balances := version.Rows[int64]{Table: "account", Key: "id", Version: "version",
		Columns: []string{"balance"}, Fields: func(balance *int64) []any { return []any{balance} }}
	updater, err := version.NewUpdater(nil)
	if err != nil {
		return err
	}
	return version.Update(ctx, updater, postgres.Pool(pool), balances, "42",
		func(_ context.Context, balance *int64) error {
			*balance += 30
			return nil
		})
}

func goHome(ctx context.Context, pool *pgxpool.Pool) error {
	return isolation.Serializable(ctx, postgres.Pool(pool), nil, func(ctx context.Context, tx pgx.Tx) error {
		var others int
		err := tx.QueryRow(ctx, `select count(*) from doctor where on_call and name <> 'ada'`).Scan(&others)
		if err != nil || others == 0 {
			return cmp.Or(err, errLastDoctor)
		}
		_, err = tx.Exec(ctx, `update doctor set on_call = false where name = 'ada'`)
		return err
	})
}

func readPriceCommitted(ctx context.Context, db *sql.DB) (price int64, err error) {
	err = isolation.Do(ctx, mysql.DB(db), interlock.ReadCommitted, nil, func(ctx context.Context, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, `select price from item where id = 7`).Scan(&price)
	})
	return price, err
}

func holdChairs(ctx context.Context, pool *pgxpool.Pool) error {
	shelf := stock.Table{}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		err := shelf.Hold(ctx, postgres.Tx(tx), "order/17", 10*time.Minute, stock.Line{Item: "chair", N: 2})
		var short *stock.ShortError
		if errors.As(err, &short) {
			return fmt.Errorf("only %d are left", short.Available)
		}
		return err // with the payment: shelf.Confirm(ctx, postgres.Tx(tx), "order/17")
	})
}

func bookSeat(ctx context.Context, client rueidis.Client) error {
	seats := stock.NewStore(redis.NewStock(client, nil), nil)
	err := seats.Hold(ctx, "booking/17", 10*time.Minute, stock.Line{Item: "seat/12A", N: 1})
	var short *stock.ShortError
	if errors.As(err, &short) {
		return errTaken
	}
	if err != nil {
		return err // repeating it with the same id does no harm
	}
	// the customer pays
	return seats.Confirm(ctx, "seat/12A", "booking/17")
}

func applyEvent(ctx context.Context, pool *pgxpool.Pool) error {
	seen := version.Table{}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		outcome, err := seen.Apply(ctx, postgres.Tx(tx), version.Change{
			Entity: "order/42", Stamp: version.Stamp{Version: 4}, Terminal: true})
		if err != nil || outcome != version.Applied {
			return err // old, or a duplicate: acknowledge it
		}
		_, err = tx.Exec(ctx, `update orders set status = 'cancelled' where id = 42`)
		return err
	})
}

func applyState(ctx context.Context, client rueidis.Client) error {
	prices, err := version.NewStore(redis.NewVersions(client, "price:"), nil)
	if err != nil {
		return err
	}
	outcome, stored, err := prices.Apply(ctx, "item/7", version.Versioned{
		Stamp: version.Stamp{Version: 12, Tie: "shop-2"}, Data: []byte(`{"cents":1999}`)})
	if err == nil && outcome != version.Applied {
		fmt.Println("there is", stored.Stamp, "already")
	}
	return err
}

func inOrder(ctx context.Context, events []event, handle func(context.Context, event) error) error {
	workers, err := keyed.NewExecutor(&keyed.Options{Concurrency: 16, Wait: true})
	if err != nil {
		return err
	}
	for _, e := range events {
		err := workers.Go(ctx, e.Customer, func(ctx context.Context) error { return handle(ctx, e) },
			func(err error) { e.Acknowledge(err) })
		if err != nil {
			return err
		}
	}
	return workers.Close(ctx)
}

func deliverInSequence(pool *pgxpool.Pool, alert func(observe.SequenceGap)) (*sequence.Sequencer[pgx.Tx], error) {
	store := sequence.InTx(postgres.Pool(pool), sequence.Table{})
	return sequence.New("orders", store, func(ctx context.Context, tx pgx.Tx, d sequence.Delivery) error {
		outcome, err := version.Table{}.Apply(ctx, postgres.Tx(tx), version.Change{
			Entity: d.Key, Stamp: version.Stamp{Version: d.Seq}})
		if err != nil || outcome != version.Applied {
			return err // it came late: what was after it is applied already
		}
		_, err = tx.Exec(ctx, `update orders set status = $1 where id = 42`, string(d.Payload))
		return err
	}, &sequence.Options{
		Settled: func(e sequence.Event, o sequence.Outcome) { e.Handle.(letter).Acknowledge() },
		Observe: &observe.Sequence{Overdue: alert},
	})
}

func offerMessage(ctx context.Context, orders *sequence.Sequencer[pgx.Tx], m letter) error {
	outcome, err := orders.Offer(ctx, sequence.Event{Key: m.Key, Position: sequence.Position{Seq: m.Seq}, Payload: m.Body, Handle: m})
	switch {
	case outcome.Durable():
		m.Acknowledge()
	case outcome == sequence.Held: // Settled will tell
	case outcome == sequence.Repeated:
		return errors.New("another copy is held: have it delivered again later")
	}
	return err // not nil: have it delivered again
}

func receiveOnce(ctx context.Context, pool *pgxpool.Pool, m letter) error {
	inbox := once.Inbox{Consumer: "billing"}
	_, err := once.Tx(ctx, postgres.Pool(pool), inbox, once.Message{ID: m.ID, Payload: m.Body},
		func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `update account set balance = balance - 30 where id = 42`)
			return err
		})
	return err // nil: done, now or before: acknowledge it
}

func receiveInSequence(ctx context.Context, pool *pgxpool.Pool, m letter) error {
	inbox := once.Inbox{Consumer: "orders"}
	_, err := once.Tx(ctx, postgres.Pool(pool), inbox, once.Message{Key: m.Key, Seq: m.Seq, Payload: m.Body},
		func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `update orders set status = $1 where id = 42`, string(m.Body))
			return err
		})
	var gap *once.GapError
	if errors.As(err, &gap) {
		return fmt.Errorf("deliver it again, after %d: %w", gap.Want, err)
	}
	return err // nil: done, now or before: acknowledge it
}

func sendWithTheOrder(ctx context.Context, pool *pgxpool.Pool) error {
	box := outbox.Table{}
	return outbox.Tx(ctx, postgres.Pool(pool), nil, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `update orders set status = 'paid' where id = 42`); err != nil {
			return err
		}
		return box.Add(ctx, postgres.Tx(tx), outbox.Message{Topic: "orders", Key: "order/42", Payload: []byte(`paid`)})
	})
}

func relayMessages(ctx context.Context, pool *pgxpool.Pool, locks *lock.Fenced, publish func(context.Context, outbox.Message) error) error {
	relay, err := outbox.NewRelay(postgres.Pool(pool), outbox.Table{}, outbox.Func(publish), nil)
	if err != nil {
		return err
	}
	return locks.Keep(ctx, "outbox", relay.RunAll) // in each process: one sends, the others stand by
}

func payOnce(pool *pgxpool.Pool, customer func(*http.Request) string) (http.Handler, error) {
	records := idempotency.NewSQL(postgres.Pool(pool), idempotency.Table{})
	store, err := idempotency.New(records, nil)
	pay := func(w http.ResponseWriter, r *http.Request) {
		paid, err := idempotency.Phase(r.Context(), records, "pay", func(ctx context.Context, tx pgx.Tx) (id int64, err error) {
			err = tx.QueryRow(ctx, `insert into payment (cents) values (1999) returning id`).Scan(&id)
			return id, err
		})
		if err != nil {
			http.Error(w, "try again, with the same key", http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]int64{"payment": paid})
	}
	return idempotency.Handler(store, customer, http.HandlerFunc(pay), nil), err
}

func withdrawUnderLock(ctx context.Context, pool *pgxpool.Pool, locks *lock.Fenced) error {
	return locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		return fence.Tx(ctx, postgres.Pool(pool), fence.Table{}, c, "account/42",
			func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `update account set balance = balance - 30 where id = 42`)
				return err
			})
	})
}
