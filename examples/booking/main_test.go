package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/tcc"
)

func TestMain(m *testing.M) { crash.Main(m, map[string]crash.Role{"agent": sendAgent}) }

// patience bounds every wait. No step needs a tenth of it.
const patience = 30 * time.Second

var ok = testbed.OK

// world creates a database on each of the servers that the tests share.
func world(tb testing.TB) settings {
	tb.Helper()
	return settings{hold: 10 * time.Second,
		postgres: databases.Open(tb, testbed.Shared(tb, testbed.Postgres), databases.Pgx).URL, mariadb: databases.Open(tb, testbed.Shared(tb, testbed.MariaDB), databases.Maria).URL}
}

// bounded returns a context that bounds the waits of the test.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func opened(tb testing.TB, s settings) *agency {
	tb.Helper()
	a, err := open(tb.Context(), s)
	ok(tb, err)
	tb.Cleanup(a.close)
	return a
}

// offer sets the number of rooms and seats.
func (a *agency) offer(tb testing.TB, rooms, seats int64) {
	tb.Helper()
	ok(tb, errors.Join(a.rooms.offer(tb.Context(), "room", rooms), a.seats.offer(tb.Context(), "seat", seats)))
}

// want checks both databases: the sales, that nothing is held, and that both sides have
// recorded the same trips.
func (a *agency) want(tb testing.TB, sold int64) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
	defer cancel()
	free := func(l tcc.Level) bool { return l.Held == 0 }
	ok(tb, errors.Join(a.rooms.until(ctx, "room", free), a.seats.until(ctx, "seat", free)))
	rooms, err := a.rooms.level(ctx, "room")
	ok(tb, err)
	seats, err := a.seats.level(ctx, "seat")
	ok(tb, err)
	if rooms.Sold != sold || seats.Sold != sold {
		tb.Errorf("%+v rooms and %+v seats, want %d sold of each", rooms, seats, sold)
	}
	const query = `select trip from trip_sale order by trip`
	hotel, airline := sales(tb, a.rooms, query), sales(tb, a.seats, query)
	if fmt.Sprint(hotel) != fmt.Sprint(airline) || len(hotel) != int(sold) {
		tb.Errorf("the hotel has %q, the airline %q, want %d", hotel, airline, sold)
	}
}

func sales[T any](tb testing.TB, s *seller[T], query string) (all []string) {
	tb.Helper()
	tx, err := s.db.Begin(tb.Context())
	ok(tb, err)
	ok(tb, tx.Query(tb.Context(), query, nil, func(scan func(...any) error) error {
		var trip string
		err := scan(&trip)
		all = append(all, trip)
		return err
	}))
	ok(tb, tx.Rollback(tb.Context()))
	return all
}

// TestExample runs the program: a crashed booking holds one of the rooms for a while. A second
// run finds every booking decided.
func TestExample(t *testing.T) {
	s := world(t)
	again := regexp.MustCompile("(?m)^ghost: (holds|its time) .*\n").ReplaceAllString(output, "")
	for _, want := range []string{output, again} {
		var out strings.Builder
		ok(t, travel(bounded(t), s, "2026", &out))
		if out.String() != want {
			t.Errorf("it printed\n%s\nnot\n%s", &out, want)
		}
	}
}

const output = `ghost: holds a room, and is gone
ann: CONFIRMED
bob: CANCELLED: branch "hotel": 1 units of "room/2026" are refused: there are too few, or there would be too many
ghost: its time was over, the sweeper has asked, and the room is free
ghost: CANCELLED: branch "hotel" asked, and nothing was decided
eve: CONFIRMED
joe: CANCELLED: branch "hotel": 1 units of "room/2026" are refused: there are too few, or there would be too many
2 of 2 rooms and 2 of 3 seats are sold
`

// TestLastSeat books twenty trips concurrently in two processes, each twice, for three rooms
// and two seats. Two are booked, nothing is sold twice, and all other holds are freed.
func TestLastSeat(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	s := world(t)
	agencies := []*agency{opened(t, s), opened(t, s)}
	agencies[0].offer(t, 3, 2)
	const travellers = 20
	var mu sync.Mutex
	ends := map[string][]tcc.Decision{}
	var work sync.WaitGroup
	for i := range 2 * travellers {
		work.Go(func() {
			a, id := agencies[i%2], fmt.Sprint("trip/", i/2)
			o, err := a.book(ctx, id, "room", "seat")
			if err != nil && !errors.Is(err, tcc.ErrCancelled) {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ends[id] = append(ends[id], o.Decision)
		})
	}
	work.Wait()
	booked := int64(0)
	for id, outcomes := range ends {
		if len(outcomes) != 2 || outcomes[0] != outcomes[1] {
			t.Errorf("%s got the outcomes %v", id, outcomes)
		}
		if outcomes[0] == tcc.Confirm {
			booked++
		}
	}
	if booked > 2 {
		t.Errorf("%d are booked on two seats", booked)
	}
	// Bookings that held one of the two may have blocked each other. Their holds are free,
	// and the next booking gets them.
	free := func(l tcc.Level) bool { return l.Held == 0 }
	ok(t, errors.Join(agencies[0].rooms.until(ctx, "room", free), agencies[0].seats.until(ctx, "seat", free)))
	for i := booked; i < 2; i++ {
		_, err := agencies[1].book(ctx, fmt.Sprint("late/", i), "room", "seat")
		ok(t, err)
	}
	if _, err := agencies[1].book(ctx, "too late", "room", "seat"); !errors.Is(err, tcc.ErrCancelled) {
		t.Errorf("a third seat: %v", err)
	}
	agencies[0].want(t, 2)
}

const trips = 12

// sendAgent runs the process that is killed: it books several trips concurrently and prints
// each decision.
func sendAgent(ctx context.Context, _ *crash.Points, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a, err := open(ctx, settings{postgres: args[0], mariadb: args[1], hold: 10 * time.Second})
	if err != nil {
		return err
	}
	defer a.close()
	fmt.Println("open")
	for id, decision := range bookAll(ctx, a) {
		fmt.Println(id, decision)
	}
	return ctx.Err()
}

// bookAll books all trips concurrently and yields each as soon as it is decided.
func bookAll(ctx context.Context, a *agency) iter.Seq2[string, tcc.Decision] {
	return func(yield func(string, tcc.Decision) bool) {
		decided := make(chan tcc.Outcome)
		for i := range trips {
			go func() {
				id := fmt.Sprint("trip/", i)
				o, err := a.book(ctx, id, "room", "seat")
				for err != nil && !errors.Is(err, tcc.ErrCancelled) && ctx.Err() == nil {
					o, err = a.book(ctx, id, "room", "seat")
				}
				o.ID = id
				decided <- o
			}()
		}
		for range trips {
			o := <-decided
			yield(o.ID, o.Decision)
		}
	}
}

// TestKilled kills a process while it books; the next one books the same trips. Acknowledged
// bookings stay, and all others are complete on both sides or absent from both.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, lines := range []int{0, 1, 4, 9} {
		t.Run(fmt.Sprint("after ", lines), func(t *testing.T) {
			t.Parallel()
			s := world(t)
			a := opened(t, s)
			a.offer(t, trips-2, trips) // two find no room
			told := map[string]string{}
			p := crash.Start(t, "agent", 0, s.postgres, s.mariadb)
			p.Line(patience) // it is open
			for range lines {
				id, decision, _ := strings.Cut(p.Line(patience), " ")
				told[id] = decision
			}
			p.Kill()
			booked := int64(0)
			for id, decision := range bookAll(bounded(t), a) {
				if was, found := told[id]; found && was != string(decision) {
					t.Errorf("%s had the decision %s, and has %s", id, was, decision)
				}
				if decision == tcc.Confirm {
					booked++
				}
			}
			if booked == 0 {
				t.Error("nothing is booked")
			}
			a.want(t, booked)
		})
	}
}
