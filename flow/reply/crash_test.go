package reply_test

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/reply"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/internal/transact"
)

func TestMain(m *testing.M) { crash.Main(m, map[string]crash.Role{"worker": worker, "caller": caller}) }

// worker handles the calls of a queue until none is left. at may be nil.
func worker(ctx context.Context, at *crash.Points, args []string) error {
	plain, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	db, pass := driver.BeginnerAt[driver.SQL](plain), func() {}
	if at != nil {
		db, pass = crash.BeginnerAt(plain, at), at.Pass
	}
	// The leases of the previous run expire now.
	if err := in(ctx, plain, `update interlock_queue_group set ready_at = 1 where state & 1 = 1`); err != nil {
		return err
	}
	c, err := queue.FromTable(plain, queue.Table{}, nil).Join(ctx, "calls", driver.QueueOptions{Lease: time.Hour})
	if err != nil {
		return err
	}
	handle := reply.Handler(db, reply.Table{}, nil, effect)
	for {
		left, err := count(ctx, plain, `select count(*) from interlock_queue`)
		if err != nil {
			return err
		}
		if left == 0 {
			return c.Close(ctx)
		}
		some, err := c.Receive(ctx, driver.QueueLimit{Messages: 1, Bytes: 1})
		if err != nil {
			return err
		}
		if err := handle(some[0].Claim.Context(), *some[0]); err != nil {
			return err
		}
		pass()
		if err := c.Settle(ctx, []driver.Settlement{{Received: some[0], Outcome: driver.Ack}})[0]; err != nil {
			return err
		}
	}
}

func in(ctx context.Context, db driver.BeginnerAt[driver.SQL], statement string) error {
	return transact.Do(ctx, db.Begin, "", func(tx driver.Tx[driver.SQL]) error {
		_, err := tx.Exec(ctx, statement)
		return err
	})
}

func count(ctx context.Context, db driver.BeginnerAt[driver.SQL], query string) (n int64, err error) {
	err = transact.Do(ctx, db.Begin, "", func(tx driver.Tx[driver.SQL]) error {
		n, err = databases.Value[int64](ctx, tx, query)
		return err
	})
	return n, err
}

// caller calls, while a worker of this process answers.
func caller(ctx context.Context, at *crash.Points, args []string) error {
	plain, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	db := crash.BeginnerAt(plain, at)
	c := reply.NewCaller(db, reply.Table{}, nil, func(ctx context.Context, m queue.Message) error {
		if err := sendIn(db)(ctx, m); err != nil {
			return err
		}
		return worker(ctx, nil, args)
	})
	_, err = c.Call(ctx, call("1"))
	return err
}

// TestCrash kills a worker, and a caller, between any two of their statements. Repeated calls have one
// effect, and return its result.
func TestCrash(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for _, role := range []string{"worker", "caller"} {
			t.Run(role, func(t *testing.T) {
				t.Parallel()
				crash.Once(t, role, func(tb testing.TB) crash.Scene {
					db := open(tb)
					db.Do(tb, reply.Table{}.Create)
					db.Do(tb, queue.Table{}.Create)
					db.Exec(tb, `create table effect (id varchar(64) not null)`)
					if role == "worker" {
						ok(tb, sendIn(db)(tb.Context(), call("1")))
					}
					return crash.Scene{Args: []string{db.Client, db.URL}, Want: func(tb testing.TB) {
						got, err := reply.NewCaller(db, reply.Table{}, nil, func(context.Context, queue.Message) error {
							tb.Error("there is no result")
							return context.Canceled
						}).Call(tb.Context(), call("1"))
						if n := databases.One[int64](tb, db, `select count(*) from effect`); err != nil || string(got) != "11" || n != 1 {
							tb.Errorf("%q, %v, %d effects", got, err, n)
						}
					}}
				})
			})
		}
	})
}
