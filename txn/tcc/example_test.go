package tcc_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	_ "github.com/interlock-dev/interlock/driver/memory" // memory://
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// seats is a participant in memory. The states of the branches are its barrier.
type seats struct {
	mu     sync.Mutex
	free   int
	states map[string]string // by transaction and branch
}

func (s *seats) Try(ctx context.Context, passenger string, _ time.Time) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := branch.From(ctx)
	switch id := c.Transaction + "/" + c.Branch; {
	case s.states[id] == "held" || s.states[id] == "confirmed": // a repeated call
	case s.states[id] != "" || s.free == 0:
		s.states[id] = "refused"
		return "", branch.Fail(errors.New("there is no seat left"))
	default:
		s.free, s.states[id] = s.free-1, "held"
	}
	return "ticket of " + passenger, nil
}

func (s *seats) Confirm(ctx context.Context, _, ticket string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := branch.From(ctx)
	s.states[c.Transaction+"/"+c.Branch] = "confirmed"
	return nil
}

func (s *seats) Cancel(ctx context.Context, _ string, _ *string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := branch.From(ctx)
	if id := c.Transaction + "/" + c.Branch; s.states[id] != "cancelled" {
		if s.states[id] == "held" {
			s.free++
		}
		s.states[id] = "cancelled" // also if it was never tried: a late try is refused
	}
	return nil
}

// A trip is booked on two flights. The second trip gets no seat on the return flight, and
// releases the outbound one.
func Example() {
	ctx := context.Background()
	outbound, back := &seats{free: 2, states: map[string]string{}}, &seats{free: 1, states: map[string]string{}}
	out, home := tcc.Define("LH400", tcc.Resource[string, string](outbound)), tcc.Define("LH401", tcc.Resource[string, string](back))

	rt, err := txn.Open(ctx, "memory://trips", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close(ctx)
	trips, err := tcc.New(rt.Coordinator(), nil, out, home)
	if err != nil {
		log.Fatal(err)
	}
	if err := rt.Start(ctx); err != nil {
		log.Fatal(err)
	}

	for _, passenger := range []string{"alice", "bob"} {
		id, ticket := "trip/"+passenger, out.Try(passenger)
		outcome, err := trips.Run(ctx, "trip", id, ticket, home.Try(passenger))
		var cancelled *tcc.CancelledError
		switch {
		case errors.As(err, &cancelled):
			fmt.Println(passenger, "stays at home:", cancelled.Reason)
		case err != nil:
			log.Fatal(err) // it may be decided: run it again, under the same id
		default:
			text, _ := ticket.OutputOf(outcome)
			fmt.Println(passenger, "has a", text)
		}
		outcome, _ = trips.Wait(ctx, id)
		fmt.Println(outcome.State)
	}
	fmt.Println(outbound.free, "and", back.free, "seats are free")
	// Output:
	// alice has a ticket of alice
	// CONFIRMED
	// bob stays at home: branch "LH401": there is no seat left
	// CANCELLED
	// 1 and 0 seats are free
}

// Money moves from an account of one database to an account of another: it is held there
// and announced here, then both are confirmed.
func ExampleHolds() {
	transfer := func(ctx context.Context, c *coordinator.Coordinator, north, south *pgxpool.Pool, id string, cents int64) error {
		from := tcc.Holds[pgx.Tx]{DB: postgres.Pool(north)}
		to := tcc.Holds[pgx.Tx]{DB: postgres.Pool(south), Confirmed: func(ctx context.Context, tx pgx.Tx, w tcc.Want) error {
			_, err := tx.Exec(ctx, `insert into statement (transfer, account, cents) values ($1, $2, $3)`, branch.From(ctx).Transaction, w.Item, w.N)
			return err
		}}
		debit, credit := tcc.Define("debit", from.Take()), tcc.Define("credit", to.Give())
		bank, err := tcc.New(c, nil, debit, credit) // once, before c serves
		if err != nil {
			return err
		}
		_, err = bank.Run(ctx, "transfer", id, debit.Try(tcc.Want{Item: "alice", N: cents}), credit.Try(tcc.Want{Item: "bob", N: cents}))
		return err // nil: it is decided, and both will be confirmed
	}
	_ = transfer
}

// A table also works in the user's own transaction: here in a service that is called as
// a participant.
func ExampleTable() {
	var table tcc.Table
	try := func(ctx context.Context, tx pgx.Tx, c branch.Call, item string, until time.Time) error {
		return table.Take(branch.With(ctx, c), postgres.Tx(tx), tcc.Want{Item: item, N: 1}, until)
	}
	_ = try
}

// An operator handles a transaction that cannot continue by itself.
func ExampleOperator() {
	help := func(ctx context.Context, j *journal.Journal) error {
		operator := tcc.NewOperator(j)
		for o, err := range operator.List(ctx, tcc.Filter{Unfinished: true}) {
			if err != nil {
				return err
			}
			if o.State == tcc.DeadLetter {
				fmt.Println(o.ID, o.Decision, o.Dead)
			}
		}
		return operator.Retry(ctx, "trip/alice", "LH401", tcc.By{Actor: "eve", Reason: "the airline has fixed it"})
	}
	_ = help
}
