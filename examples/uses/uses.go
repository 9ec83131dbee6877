// Package uses has each use of Interlock in as few lines as possible. docs/reference/uses.md compares
// their number with other libraries. A test counts the lines between "use" and "end", and runs them.
package uses

import (
	"context"
	"database/sql"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/claim/rowlock"
	"github.com/interlock-dev/interlock/claim/semaphore"
	_ "github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	_ "github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// The systems.
var (
	redisURL = "redis://127.0.0.1"
	etcdURL  = "etcd://127.0.0.1"
	shopURL  = "postgres://127.0.0.1/shop"
)

// The work of an application, which the uses call.
var (
	work   func(ctx context.Context, c interlock.Claim) error
	write  func(ctx context.Context, tx pgx.Tx) error
	apply  func(ctx context.Context, tx interlock.SQL) error
	lead   func(ctx context.Context, term *elect.Term) error
	export func(ctx context.Context, p *semaphore.Permit) error
	send   func(ctx context.Context, m outbox.Message) error
	serve  http.Handler
	tenant func(*http.Request) string
	listen func(http.Handler) error
	orders func(handle func(id string) error) error // an order that another process owns is Retryable
	flight tcc.Resource[string, string]
	locked func(ctx context.Context, tx pgx.Tx, found []int) error
	debit  func(ctx context.Context, tx pgx.Tx) error
	credit func(ctx context.Context, branch mysqlBranch) error
	ctx    = context.Background()
)

// Trip is the input of the saga.
type Trip struct{ Day string }

func book(context.Context, Trip) (string, error)  { return "", nil }
func cancel(context.Context, Trip, *string) error { return nil }

type mysqlBranch = *sql.Conn

func lockAThing() error {
	// use: lock a thing
	locks, err := lock.Open(ctx, redisURL, nil)
	if err != nil {
		return err
	}
	defer locks.Close(ctx)
	return locks.Do(ctx, "report", work)
	// end
}

func electALeader() error {
	// use: elect a leader
	elections, err := elect.Open(ctx, etcdURL, nil)
	if err != nil {
		return err
	}
	defer elections.Close(ctx)
	return elections.Run(ctx, "billing", lead)
	// end
}

func fencedWrite(locks *lock.Fenced, pool *pgxpool.Pool) error {
	// use: fenced write
	return locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		return fence.Tx(ctx, postgres.Pool(pool), fence.Table{}, c, "account/42", write)
	})
	// end
}

func outboxAndRelay(pool *pgxpool.Pool, created outbox.Message) error {
	// use: outbox in a transaction, with its relay
	relay, err := outbox.Start(ctx, shopURL, outbox.Table{}, outbox.Func(send), nil)
	if err != nil {
		return err
	}
	defer relay.Close(ctx)
	return outbox.Tx(ctx, postgres.Pool(pool), nil, func(ctx context.Context, tx pgx.Tx) error {
		return outbox.Table{}.Add(ctx, postgres.Tx(tx), created) // beside the application's own statements
	})
	// end
}

func idempotentHandler() error {
	// use: idempotent HTTP handler
	answers, err := idempotency.Open(ctx, shopURL, nil)
	if err != nil {
		return err
	}
	defer answers.Close(ctx)
	return listen(idempotency.Handler(answers, tenant, serve, nil))
	// end
}

func inboxConsumer(id string, body []byte) error {
	// use: inbox consumer
	inbox, err := once.Open(ctx, shopURL, once.Inbox{Consumer: "billing"})
	if err != nil {
		return err
	}
	defer inbox.Close(ctx)
	_, err = inbox.Receive(ctx, once.Message{ID: id, Payload: body}, apply)
	return err
	// end
}

func sagaOfThreeSteps() error {
	// use: saga of three steps, with undo and runtime
	trip := saga.Define("trip",
		saga.Step("flight", book).Undo("cancel flight", cancel),
		saga.Step("hotel", book).Undo("cancel hotel", cancel),
		saga.Step("car", book).Undo("cancel car", cancel))
	rt, err := txn.Open(ctx, shopURL, nil) // such as postgres://127.0.0.1/shop
	if err != nil {
		return err
	}
	defer rt.Close(ctx)
	engine, err := saga.New(rt.Coordinator(), nil, trip)
	if err != nil {
		return err
	}
	if err := rt.Start(ctx); err != nil {
		return err
	}
	_, err = trip.Do(ctx, engine, "trip/42", Trip{"monday"})
	return err
	// end
}

func tryConfirmCancel(pool *pgxpool.Pool) error {
	// use: TCC
	rooms := tcc.Holds[pgx.Tx]{DB: postgres.Pool(pool)}
	hotel, seats := tcc.Define("hotel", rooms.Take()), tcc.Define("flight", flight)
	rt, err := txn.Open(ctx, shopURL, nil)
	if err != nil {
		return err
	}
	defer rt.Close(ctx)
	bookings, err := tcc.New(rt.Coordinator(), nil, hotel, seats)
	if err != nil {
		return err
	}
	if err := rt.Start(ctx); err != nil {
		return err
	}
	_, err = bookings.Run(ctx, "booking", "booking/42", hotel.Try(tcc.Want{Item: "room", N: 1}), seats.Try("LH 400"))
	return err
	// end
}

func twoPhaseCommit(pg *postgres.Participant[pgx.Tx], maria *mysql.Participant) error {
	// use: two-phase commit
	north, south := twopc.Define("north", pg), twopc.Define("south", maria)
	rt, err := txn.Open(ctx, shopURL, nil)
	if err != nil {
		return err
	}
	defer rt.Close(ctx)
	engine, err := twopc.New(rt.Coordinator(), nil, north, south)
	if err != nil {
		return err
	}
	if err := rt.Start(ctx); err != nil {
		return err
	}
	return engine.Run(ctx, "transfer/42", func(ctx context.Context, t *twopc.T) error {
		a, err := north.Join(ctx, t)
		if err != nil {
			return err
		}
		b, err := south.Join(ctx, t)
		if err != nil {
			return err
		}
		if err := debit(ctx, a); err != nil {
			return err
		}
		return credit(ctx, b)
	})
	// end
}

func partitions() error {
	// use: partitions
	group, err := partition.Open(ctx, etcdURL, "orders", partition.Layout{Partitions: 64}, nil)
	if err != nil {
		return err
	}
	defer group.Leave(ctx)
	return orders(func(id string) error { return group.Do(ctx, id, work) })
	// end
}

func rowLock(pool *pgxpool.Pool) error {
	// use: row lock
	return rowlock.Tx(ctx, postgres.Pool(pool), rowlock.Rows{Table: "account", Key: "id"}, []int{42, 43}, nil, locked)
	// end
}

func semaphores() error {
	// use: semaphore
	permits, err := semaphore.Open(ctx, redisURL, 3, nil)
	if err != nil {
		return err
	}
	defer permits.Close(ctx)
	return permits.Do(ctx, "exports", export)
	// end
}

// sweeps is the code of retention in docs/explanation/transactions.md.
func sweeps(db interlock.BeginnerAt[pgx.Tx], table barrier.Table, seats tcc.Table, answers *idempotency.Store) coordinator.Options {
	return coordinator.Options{Retention: coordinator.Retention{Sweeps: []coordinator.Sweep{
		{Name: "stock", Run: func(ctx context.Context, m journal.Mark) (coordinator.SweepResult, error) {
			n, err := barrier.ForgetExcept(ctx, db, table, m.Time, m.Except, 0)
			return coordinator.SweepResult{Removed: n}, err
		}},
		tcc.Sweep("seats", db, seats, 0),                                          // Forget and Overdue of a tcc.Table
		coordinator.SweepBy("answers", idempotency.NewReaper(answers, nil).Sweep), // of guard/idempotency
	}}}
}

var _ = sweeps // used only on a page
