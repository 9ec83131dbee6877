package countermeasure_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/countermeasure"
)

// The first step of a saga flags the order that it works on; the last one, and the undo
// of the first, release it.
func ExampleSemanticLock() {
	ctx := branch.With(context.Background(), branch.Call{Transaction: "cancel/17", Branch: "begin", Operation: branch.Do})
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	var orders countermeasure.SemanticLock // its table was made by Create
	begin := func(ctx context.Context, order string) error {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			saga := branch.From(ctx).Transaction
			err := orders.Acquire(ctx, postgres.Tx(tx), countermeasure.Intent{
				Resource: "order/" + order, Owner: saga, Purpose: "cancellation", TTL: time.Hour})
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `update orders set status = 'cancelling', by_saga = $2 where id = $1`, order, saga)
			return err
		})
		if errors.Is(err, interlock.ErrHeld) {
			return branch.Retry(err) // another saga is at work on it
		}
		return err
	}
	fmt.Println(begin(ctx, "17"))
}

// Wait tries again, in other transactions, while another saga has the flag.
func ExampleWait() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	var orders countermeasure.SemanticLock
	err = countermeasure.Wait(ctx, postgres.Pool(pool), &countermeasure.Patience{For: 2 * time.Second},
		func(ctx context.Context, tx pgx.Tx) error {
			if err := orders.Vacant(ctx, postgres.Tx(tx), "order/17"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `insert into invoice select * from order_line where order_id = '17'`)
			return err
		})
	var held *countermeasure.HeldError
	if errors.As(err, &held) {
		fmt.Println("still in work:", held.Flag.Purpose, "by", held.Flag.Owner, "until", held.Flag.Until)
	}
}

// A step and its undo are the same function: a difference, once, and back again, once.
func ExampleSum() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	balances := countermeasure.Sum{Table: "account", Key: "id", Column: "balance"} // never below 0
	var file countermeasure.VersionFile
	debit := func(ctx context.Context, account string, cents int64) error {
		var refusal error
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			verdict, err := balances.Apply(ctx, postgres.Tx(tx), file, branch.From(ctx), account, -cents)
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
	call := branch.Call{Transaction: "order/17", Branch: "debit", Operation: branch.Do}
	fmt.Println(debit(branch.With(ctx, call), "alice", 1999))
	call.Operation = branch.Undo
	fmt.Println(debit(branch.With(ctx, call), "alice", 1999))
}

// A seat is reserved, and given back, by a participant whose messages come in any
// order.
func ExampleVersionFile() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/hall")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	var seats countermeasure.VersionFile
	cancel := func(ctx context.Context, seat string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			verdict, _, err := seats.Cancel(ctx, postgres.Tx(tx), "seat/"+seat, countermeasure.OperationID(branch.From(ctx)))
			if err != nil || verdict != countermeasure.Reverse {
				return err // if it was never reserved, it never will be
			}
			_, err = tx.Exec(ctx, `update seat set guest = null where id = $1`, seat)
			return err
		})
	}
	call := branch.Call{Transaction: "booking/17", Branch: "seat", Operation: branch.Undo}
	fmt.Println(cancel(branch.With(ctx, call), "12A"))
}

// New prices are seen all at once, when the saga that finds them out is through.
func ExampleStaging() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	prices := countermeasure.Staging{Table: "price", Key: []string{"item"}, Columns: []string{"cents"}}
	in := func(fn func(tx pgx.Tx) error) {
		if err := pgx.BeginFunc(ctx, pool, fn); err != nil {
			log.Fatal(err)
		}
	}
	in(func(tx pgx.Tx) error { return prices.Create(ctx, postgres.Tx(tx)) })
	in(func(tx pgx.Tx) error { return prices.Stage(ctx, postgres.Tx(tx), "campaign/7", "chair", 1499) }) // its undo is Drop
	in(func(tx pgx.Tx) error {
		n, err := prices.Publish(ctx, postgres.Tx(tx), "campaign/7")
		fmt.Println(n, "prices are in force")
		return err
	})
}

// An address was checked by another service for as long as that took; it is written
// only if the customer has not changed it meanwhile.
func ExampleReread() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	customers := countermeasure.Reread{Row: version.Column{Table: "customer", Key: "id", Version: "version"}}
	store := func(ctx context.Context, id, checked string, seen int64) error {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := customers.Unchanged(ctx, postgres.Tx(tx), id, seen); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `update customer set address = $2 where id = $1`, id, checked)
			return err
		})
		var changed *countermeasure.ChangedError
		if errors.As(err, &changed) {
			return branch.Fail(err)
		}
		return err
	}
	fmt.Println(store(ctx, "42", "1 Main Street", 7))
}

// A saga that pays a bonus before it is known that the order stands.
func ExampleCheckOrder() {
	found, err := countermeasure.CheckOrder(
		countermeasure.Step{Name: "reserve", Decreases: []string{"stock"}},
		countermeasure.Step{Name: "bonus", Increases: []string{"credit"}},
		countermeasure.Step{Name: "charge", Pivot: true},
		countermeasure.Step{Name: "ship"},
	)
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range found {
		fmt.Println(m)
	}
	// Output:
	// step "bonus": it increases "credit", which others may have used when it is undone: move it behind the pivot
}

// Transfers above 10,000 euros are not to be seen half done.
func ExampleByValue() {
	transfers := countermeasure.ByValue{Limit: 10_000_00, Below: countermeasure.Saga, Above: countermeasure.TwoPhase}
	for _, cents := range []int64{19_99, 25_000_00} {
		d, err := transfers.Choose(cents)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Type("transfer"), "because:", d)
	}
	// Output:
	// saga:transfer because: saga, since a risk of 1999 does not exceed 1000000
	// 2pc:transfer because: 2pc, since a risk of 2500000 exceeds 1000000
}
