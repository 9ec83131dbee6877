package countermeasure_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/countermeasure"
)

// The bodies of these functions are the code of docs/explanation/countermeasures.md, word for word,
// and are run on a real server: see page_test.go.

func beginCancelling(ctx context.Context, pool *pgxpool.Pool, ended func(context.Context, string) (bool, error)) error {
	var orders countermeasure.SemanticLock
	saga := branch.From(ctx).Transaction
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		err := orders.Acquire(ctx, postgres.Tx(tx), countermeasure.Intent{
			Resource: "order/42", Owner: saga, Purpose: "cancellation", TTL: time.Hour, Ended: ended})
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `update orders set status = 'cancelling', by_saga = $1 where id = 42`, saga)
		return err
	})
	if errors.Is(err, interlock.ErrHeld) {
		return branch.Retry(err) // or branch.Fail: then this saga is undone
	}
	return err
}

func finishCancelling(ctx context.Context, pool *pgxpool.Pool) error {
	var orders countermeasure.SemanticLock
	saga := branch.From(ctx).Transaction
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `update orders set status = 'cancelled', by_saga = '' where id = 42 and by_saga = $1`, saga)
		if err != nil {
			return err
		}
		_, err = orders.Release(ctx, postgres.Tx(tx), "order/42", saga)
		return err
	})
}

func readSettled(ctx context.Context, pool *pgxpool.Pool) (status string, err error) {
	var orders countermeasure.SemanticLock
	err = countermeasure.Wait(ctx, postgres.Pool(pool), &countermeasure.Patience{For: 2 * time.Second},
		func(ctx context.Context, tx pgx.Tx) error {
			if err := orders.Vacant(ctx, postgres.Tx(tx), "order/42"); err != nil {
				return err
			}
			return tx.QueryRow(ctx, `select status from orders where id = 42`).Scan(&status)
		})
	return status, err
}

func debit(ctx context.Context, pool *pgxpool.Pool, cents int64) error {
	balances := countermeasure.Sum{Table: "account", Key: "id", Column: "balance"} // never below 0
	var file countermeasure.VersionFile
	var refusal error
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		verdict, err := balances.Apply(ctx, postgres.Tx(tx), file, branch.From(ctx), "42", -cents)
		if verdict == countermeasure.Refused {
			refusal, err = err, nil // committed, so that it is refused if it comes again
		}
		return err
	})
	if err == nil && refusal != nil {
		return branch.Fail(refusal)
	}
	return err
}

func stagePrices(ctx context.Context, pool *pgxpool.Pool) error {
	prices := countermeasure.Staging{Table: "price", Key: []string{"item"}, Columns: []string{"cents"}}
	saga := branch.From(ctx).Transaction
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		switch db := postgres.Tx(tx); branch.From(ctx).Branch {
		case "find out":
			if branch.From(ctx).Operation == branch.Undo {
				_, err := prices.Drop(ctx, db, saga)
				return err
			}
			return errors.Join(prices.Stage(ctx, db, saga, "chair", 1499), prices.Stage(ctx, db, saga, "table", 4999))
		default: // the last step
			_, err := prices.Publish(ctx, db, saga)
			return err
		}
	})
}

func checkSteps() error {
	found, err := countermeasure.CheckOrder(
		countermeasure.Step{Name: "reserve", Decreases: []string{"stock"}},
		countermeasure.Step{Name: "charge", Decreases: []string{"credit"}, Pivot: true},
		countermeasure.Step{Name: "bonus", Increases: []string{"credit"}},
	)
	if len(found) > 0 {
		return fmt.Errorf("steps in a wrong order: %v", found)
	}
	return err
}

func storeChecked(ctx context.Context, pool *pgxpool.Pool, checked string, seen int64) error {
	customers := countermeasure.Reread{Row: version.Column{Table: "customer", Key: "id", Version: "version"}}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := customers.Unchanged(ctx, postgres.Tx(tx), "42", seen); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update customer set address = $1 where id = 42`, checked)
		return err
	})
	var changed *countermeasure.ChangedError
	if errors.As(err, &changed) {
		return branch.Fail(err)
	}
	return err
}

func reserveSeat(ctx context.Context, pool *pgxpool.Pool, guest string) error {
	var seats countermeasure.VersionFile
	call := branch.From(ctx)
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if call.Operation == branch.Undo {
			verdict, _, err := seats.Cancel(ctx, postgres.Tx(tx), "seat/12A", countermeasure.OperationID(call))
			if err != nil || verdict != countermeasure.Reverse {
				return err // if it was never reserved, it never will be
			}
			_, err = tx.Exec(ctx, `update seat set guest = null where id = '12A'`)
			return err
		}
		verdict, err := seats.Log(ctx, postgres.Tx(tx), countermeasure.Operation{
			Record: "seat/12A", ID: countermeasure.OperationID(call), Data: []byte(guest)})
		if err != nil || verdict != countermeasure.Apply {
			return err
		}
		_, err = tx.Exec(ctx, `update seat set guest = $1 where id = '12A'`, guest)
		return err
	})
}

func decideTransfer(ctx context.Context, tx pgx.Tx, id string, cents int64) (countermeasure.Protocol, error) {
	transfers := countermeasure.ByValue{Limit: 10_000_00, Below: countermeasure.Saga, Above: countermeasure.TwoPhase}
	decision, err := transfers.Decide(ctx, postgres.Tx(tx), id, cents)
	return decision.Protocol, err
}
