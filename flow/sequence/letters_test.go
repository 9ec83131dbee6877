package sequence_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// testPoison: an event that its handler refuses for ever becomes a dead letter and holds
// up nothing behind it; it is replayed as late, or discarded.
func testPoison(t *testing.T, db *databases.DB) {
	var j journal
	same := func(tx driver.SQL) driver.SQL { return tx }
	poison := &interlock.Error{Op: "handle", Kind: interlock.Definite, Err: errors.New("no such customer")}
	away := errors.New("the database is away")
	var fail error
	handler := func(ctx context.Context, tx driver.SQL, d sequence.Delivery) error {
		if err := record(ctx, tx, d); err != nil {
			return err
		}
		if d.Seq == 2 || d.Seq == 4 {
			return fail
		}
		return nil
	}
	stream := "test"
	letters := func(want int) (all []sequence.DeadLetter) {
		t.Helper()
		db.Do(t, func(ctx context.Context, sql driver.SQL) (err error) {
			all, err = sequence.Table{}.DeadLetters(ctx, sql, stream, 10)
			return err
		})
		if len(all) != want {
			t.Fatalf("%d letters: %+v", len(all), all)
		}
		return all
	}
	buried := sequence.WithDeadLetters(sequence.Table{}, stream, same, handler, &sequence.Poison{Attempts: 3})
	s := over(t, sequence.InTx[driver.SQL](db, sequence.Table{}), buried, &j, sequence.Options{Wait: time.Hour})
	offers(t, s, "a", "1=delivered")
	fail = away
	for range 5 {
		if _, err := s.Offer(t.Context(), event("a", 2)); !errors.Is(err, away) {
			t.Fatal(err)
		}
	}
	letters(0) // it is not the event's fault
	fail = poison
	for range 3 {
		if _, err := s.Offer(t.Context(), event("a", 2)); !errors.Is(err, poison) {
			t.Fatal(err)
		}
	}
	offers(t, s, "a", "2=delivered 3=delivered 2=duplicate")
	for range 3 {
		if _, err := s.Offer(t.Context(), event("a", 4)); !errors.Is(err, poison) {
			t.Fatal(err)
		}
	}
	offers(t, s, "a", "4=delivered 5=delivered")
	if got := effects(t, db); got != "a 0:1, a 0:3, a 0:5" {
		t.Errorf("effects: %s", got)
	}
	all := letters(2)
	if l := all[0]; l.Key != "a" || l.Seq != 2 || l.Attempts != 3 || l.Error != poison.Error() || where(t, db, "a").Holes != 2 {
		t.Errorf("%+v, %+v", l, where(t, db, "a"))
	}
	if err := sequence.Replay(t.Context(), db, sequence.Table{}, stream, all[0], same, handler); !errors.Is(err, poison) {
		t.Errorf("%v", err)
	}
	letters(2)
	fail = nil
	if err := sequence.Replay(t.Context(), db, sequence.Table{}, stream, all[0], same, handler); err != nil {
		t.Error(err)
	}
	if err := sequence.Replay(t.Context(), db, sequence.Table{}, stream, all[0], same, handler); !errors.Is(err, sequence.ErrNoHole) {
		t.Errorf("%v", err)
	}
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		return sequence.Table{}.Discard(ctx, sql, stream, "a", sequence.Position{Seq: 4})
	})
	letters(0)
	if got := effects(t, db); got != "a 0:1, a 0:3, a 0:5, a 0:2 late" || where(t, db, "a").Holes != 0 {
		t.Errorf("effects: %s, %+v", got, where(t, db, "a"))
	}
	closed(t, s)
	fail = poison
	again := over(t, sequence.InTx[driver.SQL](db, sequence.Table{}), buried, &j, sequence.Options{Wait: time.Hour})
	offers(t, again, "a", "2=duplicate 4=duplicate 6=delivered")
}
