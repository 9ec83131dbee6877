package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// testAuditIsTrimmed: the relay removes old records of what was done by hand, and keeps
// the others.
func testAuditIsTrimmed(t *testing.T, db *databases.DB) {
	add(t, db, keyed("k", 1, 3)...)
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		for _, id := range []string{"k/1", "k/2", "k/3"} {
			if err := box.MakeDeadLetter(ctx, sql, id, "why", "bob"); err != nil {
				return err
			}
		}
		return nil
	})
	before := count(t, db, `interlock_outbox_audit`)
	db.Exec(t, `update interlock_outbox_audit set done_at = done_at - 7200000000 where message_id <> 'k/3'`)
	young := count(t, db, `interlock_outbox_audit where message_id = 'k/3'`)
	if before <= young || young == 0 {
		t.Fatalf("%d records, %d young ones", before, young)
	}
	var sink memory.Sink
	serve(t, relay(t, db, &sink, outbox.Options{KeepAudit: time.Hour}), grant(1))
	testbed.Eventually(t, "old records go", bound, func() bool { return count(t, db, `interlock_outbox_audit`) == young })
}
