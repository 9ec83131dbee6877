package barrier_test

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
)

var errSold = errors.New("the seat is taken")

// A seat is held, and then sold or given back, whatever is sent twice or too late.
func Example() {
	var pool *pgxpool.Pool // the participant's own
	var seats barrier.Table
	db := postgres.Pool(pool)

	hold := func(ctx context.Context, seat string) (int64, error) {
		return barrier.Do(ctx, db, seats, seat, func(ctx context.Context, tx pgx.Tx) (id int64, err error) {
			err = tx.QueryRow(ctx, `update seat set held = true where name = $1 and not held returning id`, seat).Scan(&id)
			if errors.Is(err, pgx.ErrNoRows) {
				return 0, branch.Fail(errSold) // the same for every call of this branch
			}
			return id, err
		})
	}
	sell := func(ctx context.Context) error {
		return barrier.Confirm(ctx, db, seats, func(ctx context.Context, tx pgx.Tx, id int64) error {
			_, err := tx.Exec(ctx, `update seat set sold = true where id = $1`, id)
			return err
		})
	}
	free := func(ctx context.Context) error {
		return barrier.Undo(ctx, db, seats, func(ctx context.Context, tx pgx.Tx, id *int64) error {
			_, err := tx.Exec(ctx, `update seat set held = false where id = $1`, id)
			return err
		})
	}
	_, _, _ = hold, sell, free // functions of a coordinator's, or of handlers
}

// One function answers try, confirm and cancel: hand it to branchhttp.Handler.
func ExampleParticipant() {
	var pool *pgxpool.Pool
	p := &barrier.Participant[pgx.Tx, string, int64]{
		DB: postgres.Pool(pool),
		Do: func(ctx context.Context, tx pgx.Tx, account string) (id int64, err error) {
			err = tx.QueryRow(ctx, `insert into credit (account) values ($1) returning id`, account).Scan(&id)
			return id, err
		},
		Undo: func(ctx context.Context, tx pgx.Tx, id *int64) error {
			_, err := tx.Exec(ctx, `delete from credit where id = $1`, id)
			return err
		},
	}
	_ = p.Call
}

// In a transaction that is there already, the answer counts once it is committed.
func ExampleDoIn() {
	var pool *pgxpool.Pool
	handle := func(ctx context.Context, amount int) (int, error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return 0, err
		}
		defer tx.Rollback(context.WithoutCancel(ctx))
		answer, err := barrier.DoIn(ctx, postgres.Tx(tx), barrier.Table{}, amount, func(ctx context.Context) (left int, err error) {
			err = tx.QueryRow(ctx, `update account set balance = balance - $1 where id = 42 returning balance`, amount).Scan(&left)
			if err == nil && left < 0 {
				err = branch.Fail(errors.New("no money"))
			}
			return left, err
		})
		if err != nil {
			return 0, err
		}
		if err := tx.Commit(ctx); err != nil {
			return 0, err
		}
		return answer.Output, answer.Refused
	}
	_ = handle
}

// A call to somebody else's service, whose outcome may stay unknown.
func ExampleDoOutside() {
	var pool *pgxpool.Pool
	var charge func(ctx context.Context, key string, cents int) (id string, err error)
	handle := func(ctx context.Context, cents int) (string, error) {
		calls := barrier.Table{Name: "charges", Patience: 10 * time.Second}
		return barrier.DoOutside(ctx, postgres.Pool(pool), calls, cents, func(ctx context.Context, key string) (string, error) {
			return charge(ctx, key, cents) // asked again with the same key, if it has to be
		})
	}
	_ = handle
}
