package tcc_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
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

// TestBooking: a room on one system and a seat on the other are both booked, or neither:
// the last room is sold once, and the other guest releases the seat.
func TestBooking(t *testing.T) {
	t.Parallel()
	b := openBanks(t, nil)
	b.north.set(t, "room", 3)
	b.south.set(t, "seat", 5)
	var mu sync.Mutex
	booked, refused := 0, 0
	var work sync.WaitGroup
	for i := range 8 {
		for range 2 { // two concurrent runs of each
			work.Go(func() {
				o, err := b.engine.Run(t.Context(), "booking", fmt.Sprint("booking/", i), b.take[true].Try(tcc.Want{Item: "room", N: 1}), b.take[false].Try(tcc.Want{Item: "seat", N: 1}))
				mu.Lock()
				defer mu.Unlock()
				var why *tcc.RefusedError
				switch {
				case err == nil && o.Decision == tcc.Confirm:
					booked++
				case errors.Is(err, tcc.ErrCancelled):
					if refused++; errors.As(err, &why) && why.Item != "room" && why.Item != "seat" {
						t.Errorf("%v", err)
					}
				default:
					t.Errorf("%+v, %v", o, err)
				}
			})
		}
	}
	work.Wait()
	for i := range 8 {
		_, err := b.engine.Wait(t.Context(), fmt.Sprint("booking/", i))
		if err != nil && !errors.Is(err, tcc.ErrCancelled) {
			t.Errorf("%v", err)
		}
	}
	rooms, seats := b.north.level(t, "room"), b.south.level(t, "seat")
	if booked != 2*int(rooms.Sold) || rooms.Sold != seats.Sold || rooms.Held+seats.Held != 0 || rooms.Sold < 1 {
		t.Errorf("%d booked, %d refused: rooms %+v, seats %+v", booked, refused, rooms, seats)
	}
	for _, in := range []inn{b.north, b.south} {
		if n := databases.One[int64](t, in.DB, `select count(*) from booked`); n != rooms.Sold {
			t.Errorf("%d written down, %d sold", n, rooms.Sold)
		}
	}
}

// TestTransfers: many concurrent transfers between accounts of two systems, by engines that
// die after their tries. The sum stays the same, no account is overdrawn, and in the end
// nothing is held.
func TestTransfers(t *testing.T) {
	t.Parallel()
	b := openBanks(t, &tcc.Options{Hold: 20 * time.Second})
	const accounts, money = 4, 20
	for i := range accounts {
		b.north.set(t, fmt.Sprint(i), money)
		b.south.set(t, fmt.Sprint(i), money)
	}
	var mu sync.Mutex
	ends := map[tcc.Decision]int{}
	var work sync.WaitGroup
	for seed := range uint64(6) {
		work.Go(func() {
			dice := rand.New(rand.NewPCG(seed, 1))
			for i := range 6 {
				id, north := fmt.Sprint(seed, "/", i), dice.IntN(2) == 0
				debit := tcc.Want{Item: fmt.Sprint(dice.IntN(accounts)), N: 1 + dice.Int64N(15)}
				credit := tcc.Want{Item: fmt.Sprint(dice.IntN(accounts)), N: debit.N}
				if i%3 == 2 { // its engine tries, and dies
					holds := map[bool]inn{true: b.north, false: b.south}[north].holds()
					_, _ = holds.Take().Try(call(t.Context(), id, fmt.Sprint("take ", north), branch.Try), debit, time.Now().Add(time.Second))
					continue
				}
				o, err := b.engine.Run(t.Context(), "transfer", id, b.take[north].Try(debit), b.give[!north].Try(credit))
				if err != nil && !errors.Is(err, tcc.ErrCancelled) {
					t.Errorf("%s: %v", id, err)
				}
				_, _ = b.engine.Wait(t.Context(), id)
				mu.Lock()
				ends[o.Decision]++
				mu.Unlock()
			}
		})
	}
	work.Wait()
	testbed.Eventually(t, "nothing is held", time.Minute, func() bool {
		held := int64(0)
		for _, in := range []inn{b.north, b.south} {
			_, err := in.holds().Sweep(t.Context(), b.engine.Decide, 100)
			ok(t, err)
			for i := range accounts {
				l := in.level(t, fmt.Sprint(i))
				held += l.Held + l.Announced
			}
		}
		return held == 0
	})
	sum := int64(0)
	for _, in := range []inn{b.north, b.south} {
		for i := range accounts {
			l := in.level(t, fmt.Sprint(i))
			if sum += l.Balance(); l.Balance() < 0 {
				t.Errorf("overdrawn: %+v", l)
			}
		}
	}
	if sum != 2*accounts*money || ends[tcc.Confirm] == 0 {
		t.Errorf("%d of %d, %v", sum, 2*accounts*money, ends)
	}
}
