package tcc_test

import (
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// TestReconcile: it repeats the calls of ended transactions, which changes nothing. A
// participant that has lost a confirmed hold, by a restore from a backup, refuses, and is
// reported.
func TestReconcile(t *testing.T) {
	t.Parallel()
	north, south := open(t, databases.Open(t, testbed.Postgres(t), databases.Pgx)), open(t, databases.Open(t, testbed.MariaDB(t), databases.Maria))
	north.set(t, "room", 3)
	south.set(t, "seat", 1)
	north.Do(t, journal.NewTable(north.DB, "").Create)
	j, err := journal.New(journal.NewTable(north.DB, ""), &journal.Options{Shards: 4})
	ok(t, err)
	defer j.Close()
	c, err := coordinator.New(j, &coordinator.Options{Poll: 50 * time.Millisecond})
	ok(t, err)
	room, seat := tcc.Define("rooms", north.holds().Take()), tcc.Define("seats", south.holds().Take())
	engine, err := tcc.New(c, nil, room, seat)
	ok(t, err)
	defer txntest.Run(t.Context(), c.Run)()
	from := time.Now().Add(-time.Minute)
	for id, n := range map[string]int64{"good": 1, "too many": 2} {
		_, err := engine.Run(t.Context(), "booking", id, room.Try(tcc.Want{Item: "room", N: 1}), seat.Try(tcc.Want{Item: "seat", N: n}))
		if err != nil && !errors.Is(err, tcc.ErrCancelled) {
			t.Fatal(err)
		}
		_, _ = engine.Wait(t.Context(), id) // a cancelled one is an error
	}
	rooms, seats := north.level(t, "room"), south.level(t, "seat")
	found := func(since time.Time) (all []tcc.Finding) {
		t.Helper()
		for f, err := range engine.Reconcile(t.Context(), since) {
			ok(t, err)
			all = append(all, f)
		}
		return all
	}
	if all := found(from); len(all) > 0 {
		t.Errorf("nothing is lost, and found was %+v", all)
	}
	south.DB.Exec(t, `delete from interlock_tcc_hold where transaction_id = 'good'`)
	all := found(from)
	if len(all) != 1 || all[0].ID != "good" || all[0].Type != "booking" || all[0].Step != "seats" || all[0].Want != "confirm" || !all[0].Refused {
		t.Errorf("found %+v", all)
	}
	if later := found(time.Now().Add(time.Hour)); len(later) > 0 {
		t.Errorf("of nothing that ended later: %+v", later)
	}
	if again := north.level(t, "room"); again != rooms || south.level(t, "seat") != seats || rooms.Sold != 1 {
		t.Errorf("rooms %+v, then %+v", rooms, again)
	}
}
