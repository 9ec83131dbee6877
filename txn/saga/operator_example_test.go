package saga_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// served returns an engine that serves its sagas until the caller calls stop.
func served(j *journal.Journal, definitions ...saga.Defined) (e *saga.Engine, stop func()) {
	c, err := coordinator.New(j, nil)
	if err != nil {
		log.Fatal(err)
	}
	if e, err = saga.New(c, nil, definitions...); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	d := memory.NewSpace().Open(nil)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	claim, err := locks.Acquire(ctx, "sagas")
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, claim) }()
	return e, func() {
		_ = claim.Release(ctx)
		<-ended
		_ = locks.Close(ctx)
		_ = d.Close(ctx)
		_ = j.Close()
	}
}

// An undo that is refused leaves a dead letter. An operator handles the rest, records that,
// and closes the saga.
func ExampleOperator() {
	ctx := context.Background()
	gift := saga.Step("gift", func(ctx context.Context, to string) (string, error) {
		return "voucher", nil
	}).Undo("revoke", func(ctx context.Context, to string, voucher *string) error {
		return saga.Fail(errors.New("it was spent already"))
	})
	pay := saga.Step("pay", func(ctx context.Context, to string) (int, error) {
		return 0, saga.Fail(errors.New("no money"))
	}).Pivot()
	thank := saga.Define("thank", gift, pay)

	j, err := journal.New(memory.NewJournal(), nil)
	if err != nil {
		log.Fatal(err)
	}
	engine, stop := served(j, thank)
	defer stop()
	_, err = thank.Do(ctx, engine, "thank/1", "ann")
	fmt.Println(err)

	operator := saga.NewOperator(j)
	err = operator.Resolve(ctx, "thank/1", saga.By{Actor: "bob", Reason: "written off"})
	fmt.Println(err)
	for o, err := range saga.NewOperator(j).List(ctx, saga.Filter{Type: "thank"}) {
		fmt.Println(o.ID, o.State, o.Resolved.Reason, err)
	}
	_, entries, err := j.Open(ctx, "thank/1")
	if err != nil {
		log.Fatal(err)
	}
	moments, err := saga.Replay(entries)
	for _, m := range moments {
		fmt.Println(m.Position, m.Kind, m.Step, m.State)
	}
	fmt.Println(err)
	// Output:
	// saga "thank/1": part of the saga could not be undone: pay: no money; the undo of "gift" was given up: it was spent already
	// <nil>
	// thank/1 RESOLVED written off <nil>
	// 1 begin  RUNNING
	// 2 sent gift RUNNING
	// 3 done gift RUNNING
	// 4 sent pay RUNNING
	// 5 failed pay RUNNING
	// 6 decide abort UNDOING
	// 7 dead gift DEAD_LETTER
	// 8 resolved  RESOLVED
	// 9 end  RESOLVED
	// <nil>
}

// A booking and its saga begin in one transaction, and the money moves in one transaction
// with its record: neither exists without the other.
func ExampleStepTx() {
	order := func(db driver.BeginnerAt[driver.SQL]) error { // from postgres.Pool, postgres.DB or mysql.DB
		ctx := context.Background()
		table := journal.NewTable(db, "") // see its Create
		move := saga.StepTx("move", db, table, func(ctx context.Context, tx driver.Tx[driver.SQL], amount int) (bool, error) {
			_, err := tx.Exec(ctx, `update account set balance = balance - $1 where owner = 'ann'`, amount)
			return err == nil, err
		}).Pivot()
		pay := saga.Define("pay", move)

		j, err := journal.New(table, nil)
		if err != nil {
			return err
		}
		engine, stop := served(j, pay)
		defer stop()
		tx, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err = tx.Exec(ctx, `insert into booking (id) values (42)`); err == nil {
			err = pay.StartTx(ctx, engine, table, tx, "pay/42", 100)
		}
		if err != nil {
			return errors.Join(err, tx.Rollback(ctx))
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		_, err = engine.Wait(ctx, "pay/42")
		return err
	}
	_ = order
}
