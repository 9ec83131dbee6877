package idempotency_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestRecordsInSQL: a database keeps records as every other store does. What the
// suite breaks paths for is tried here with transactions: see TestLostReplies.
func TestRecordsInSQL(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		var tables atomic.Int64
		drivertest.RunIdempotency(t, drivertest.IdempotencyHarness{
			Start: func(t *testing.T, _ bool) drivertest.IdempotencyBackend {
				table := idempotency.Table{Name: fmt.Sprint("requests", tables.Add(1))}
				db.Do(t, table.Create)
				return inSQL{db, table}
			},
			Without: drivertest.Servers | drivertest.LostReplies,
		})
	})
}

type inSQL struct {
	*databases.DB
	table idempotency.Table
}

func (s inSQL) Open(*testing.T) (driver.Idempotency, error) {
	return idempotency.NewSQL(s.DB, s.table), nil
}

func (s inSQL) Beside(t *testing.T) (driver.Idempotency, error) { return s.Open(t) }

func (s inSQL) Faults() drivertest.Faults { return nil }
