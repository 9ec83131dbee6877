package mysql_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/mysql"
)

var rowsOf = map[string]string{"session": "interlock_holder", "table": "interlock_lease"}

func TestSeed(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	admin := open(t, server.URL())
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			drivertest.RunSeed(t, drivertest.SeedHarness{
				Open: func(t *testing.T, seed driver.Seed) (drivertest.Seeded, error) {
					d, err := m.open(t.Context(), t, server.URL(), &mysql.Options{Seed: seed})
					if err != nil {
						return nil, err
					}
					t.Cleanup(func() { d.Close(context.Background()) })
					return d.(drivertest.Seeded), nil
				},
				Set: func(t *testing.T, counter int64) {
					admin.do(t, fmt.Sprintf(`update %s set counter = %d`, rowsOf[m.name], counter))
				},
			})
		})
	}
}
