package barrier

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/branch"
)

// TestForgetInForce: a mark that another process has stored, and that calls which
// began before are still to be waited for, deletes nothing yet.
func TestForgetInForce(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Do(t, Table{}.Create)
		ctx := branch.With(t.Context(), branch.Call{Transaction: "tx", Branch: "b", Operation: branch.Do, Begun: time.UnixMilli(5)})
		if _, err := Do(ctx, db, Table{}, nil, func(context.Context, driver.SQL) (int, error) { return 1, nil }); err != nil {
			t.Fatal(err)
		}
		removed := func() (n int64) {
			t.Helper()
			if err := alone(ctx, db, Table{}, "remove", func(l ledger) (err error) {
				n, err = l.remove(ctx, 10)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return n
		}
		db.Exec(t, fmt.Sprintf(`insert into interlock_barrier_mark (generation, mark) values (2, %d)`, spread+10))
		if n := removed(); n != 0 {
			t.Errorf("%d rows are gone", n)
		}
		db.Exec(t, `delete from interlock_barrier_mark where generation = 1`)
		if n := removed(); n != 1 {
			t.Errorf("%d rows are gone, want 1", n)
		}
	}, databases.Pgx)
}
