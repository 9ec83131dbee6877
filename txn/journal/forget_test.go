package journal_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestForgetAll: it removes all transactions that ended before a time, in batches, and
// keeps unfinished ones. By an operator it leaves a record with the actor.
func TestForgetAll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		j := open(t, memory.NewJournal(), nil)
		for i := range 25 {
			log, err := j.Begin(t.Context(), fmt.Sprint(i), "x", due, says("begin")...)
			ok(t, err)
			if i != 7 {
				ok(t, log.End(t.Context(), says("end")...))
			}
		}
		time.Sleep(time.Hour)
		removed, record, err := j.ForgetBy(t.Context(), time.Now().Add(-time.Minute), 10, "ada", "the disk is full")
		if ok(t, err); removed != 24 {
			t.Errorf("%d removed", removed)
		}
		log, entries, err := j.Open(t.Context(), record)
		ok(t, err)
		if log == nil || log.Head().Ended.IsZero() || len(entries) != 1 || !strings.Contains(string(entries[0].Data), `"by":"ada","reason":"the disk is full"`) {
			t.Fatalf("%v, %+v", log, entries)
		}
		heads, err := j.Heads(t.Context(), "", 100)
		if ok(t, err); len(heads) != 2 {
			t.Errorf("%d transactions are left", len(heads))
		}
		_, _, err = j.ForgetBy(t.Context(), time.Now(), 10, "ada", "")
		wantKind(t, err, interlock.Bug, nil)
		_, err = j.ForgetAll(t.Context(), time.Now(), 0)
		wantKind(t, err, interlock.Bug, nil)
		ended, stop := context.WithCancel(t.Context())
		stop()
		if _, err := j.ForgetAll(ended, time.Now(), 1); err == nil {
			t.Error("it does not end")
		}
	})
}

// TestForgetLooksOnce at each payload of an existing transaction: the cost of forgetting
// nothing does not grow with the table.
func TestForgetLooksOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, openDB func(testing.TB) *databases.DB) {
		db := openDB(t)
		table := journal.NewTable(db, "")
		db.Do(t, table.Create)
		ok(t, table.Append(t.Context(), groupOfNobody("t"))[0])
		for _, id := range []string{"t", "nothing"} {
			ok(t, table.PutPayload(t.Context(), id, []byte("sum"), []byte("data")))
		}
		later := time.Now().Add(time.Hour)
		if n, err := table.Forget(t.Context(), later, 10); n != 0 || err != nil {
			t.Fatalf("%d forgotten, %v", n, err)
		}
		if p, err := table.Payload(t.Context(), "t", []byte("sum")); err != nil || string(p) != "data" {
			t.Errorf("the payload of a transaction is %q, %v", p, err)
		}
		young := databases.One[int64](t, db, `select count(*) from interlock_journal_payload where kept < 4000000000000000000`)
		if all := databases.One[int64](t, db, `select count(*) from interlock_journal_payload`); young != 0 || all != 1 {
			t.Errorf("%d payloads are left, %d of which are looked at again", all, young)
		}
	}, databases.Pgx, databases.Maria)
}

func groupOfNobody(id string) []driver.Append {
	return []driver.Append{{Transaction: id, Records: []driver.Record{{Kind: "begin"}}, Due: due}}
}
