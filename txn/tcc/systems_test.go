package tcc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// claim lasts as long as its context.
type claim struct{ ctx context.Context }

func (c claim) Name() string  { return "all" }
func (c claim) Owner() string { return "tester" }
func (c claim) Token() interlock.Token {
	token, err := interlock.NewToken(interlock.CounterAt(began), 0)
	if err != nil {
		panic(err)
	}
	return token
}
func (c claim) Context() context.Context { return c.ctx }
func (c claim) Valid() bool              { return c.ctx.Err() == nil }
func (c claim) Remaining() time.Duration { return time.Minute }

var began = time.Now()

// banks are two participants, on PostgreSQL and on MariaDB, whose journal is on the
// first.
type banks struct {
	north, south inn
	engine       *tcc.Engine
	take, give   map[bool]tcc.Definition[tcc.Want, tcc.Want] // true is in the north
}

func openBanks(t *testing.T, o *tcc.Options) *banks {
	t.Helper()
	b := &banks{north: open(t, databases.Open(t, testbed.Postgres(t), databases.Pgx)), south: open(t, databases.Open(t, testbed.MariaDB(t), databases.Maria)),
		take: map[bool]tcc.Definition[tcc.Want, tcc.Want]{}, give: map[bool]tcc.Definition[tcc.Want, tcc.Want]{}}
	b.north.Do(t, journal.NewTable(b.north.DB, "").Create)
	j, err := journal.New(journal.NewTable(b.north.DB, ""), &journal.Options{Shards: 4})
	ok(t, err)
	c, err := coordinator.New(j, &coordinator.Options{Poll: 50 * time.Millisecond})
	ok(t, err)
	var all []tcc.Defined
	for north, in := range map[bool]inn{true: b.north, false: b.south} {
		holds := in.holds()
		holds.Confirmed = func(ctx context.Context, tx driver.SQL, w tcc.Want) error {
			c := branch.From(ctx)
			_, err := tx.Exec(ctx, fmt.Sprintf(`insert into booked values ('%s', '%s', %d)`, c.Transaction, w.Item, w.N))
			return err
		}
		in.DB.Exec(t, `create table booked (id varchar(100), item varchar(100), n bigint)`)
		b.take[north], b.give[north] = tcc.Define(fmt.Sprint("take ", north), holds.Take()), tcc.Define(fmt.Sprint("give ", north), holds.Give())
		all = append(all, b.take[north], b.give[north])
	}
	b.engine, err = tcc.New(c, o, all...)
	ok(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- c.Run(ctx, claim{ctx}) }()
	t.Cleanup(func() { stop(); <-served; ok(t, j.Close()) })
	return b
}

// TestReconcile: it repeats the calls of ended transactions, which changes nothing. A
// participant that has lost a confirmed hold, by a restore from a backup, refuses, and is
// reported.
func TestReconcile(t *testing.T) {
	t.Parallel()
	b := openBanks(t, nil)
	b.north.set(t, "room", 3)
	b.south.set(t, "seat", 1)
	from := time.Now().Add(-time.Minute)
	for id, n := range map[string]int64{"good": 1, "too many": 2} {
		_, err := b.engine.Run(t.Context(), "booking", id, b.take[true].Try(tcc.Want{Item: "room", N: 1}), b.take[false].Try(tcc.Want{Item: "seat", N: n}))
		if err != nil && !errors.Is(err, tcc.ErrCancelled) {
			t.Fatal(err)
		}
		_, _ = b.engine.Wait(t.Context(), id) // a cancelled one is an error
	}
	rooms, seats := b.north.level(t, "room"), b.south.level(t, "seat")
	found := func(since time.Time) (all []tcc.Finding) {
		t.Helper()
		for f, err := range b.engine.Reconcile(t.Context(), since) {
			ok(t, err)
			all = append(all, f)
		}
		return all
	}
	if all := found(from); len(all) > 0 {
		t.Errorf("nothing is lost, and found was %+v", all)
	}
	b.south.DB.Exec(t, `delete from interlock_tcc_hold where transaction_id = 'good'`)
	all := found(from)
	if len(all) != 1 || all[0].ID != "good" || all[0].Type != "booking" || all[0].Step != "take false" || all[0].Want != "confirm" || !all[0].Refused {
		t.Errorf("found %+v", all)
	}
	if later := found(time.Now().Add(time.Hour)); len(later) > 0 {
		t.Errorf("of nothing that ended later: %+v", later)
	}
	if again := b.north.level(t, "room"); again != rooms || b.south.level(t, "seat") != seats || rooms.Sold != 1 {
		t.Errorf("rooms %+v, then %+v", rooms, again)
	}
}
