package journal_test

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestForgetLooksOnce at each payload of a transaction that exists: what it costs to forget
// nothing does not grow with what there is.
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
