package journal

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
)

// TestParameter: parameters are numbered beyond nine, too.
func TestParameter(t *testing.T) {
	postgres, maria := tables{dialect: driver.Postgres}, tables{dialect: driver.MariaDB}
	for i, want := range map[int]string{1: "$1", 9: "$9", 10: "$10", 123: "$123"} {
		if got := postgres.parameter(i); got != want || maria.parameter(i) != "?" {
			t.Errorf("parameter %d is %s, want %s", i, got, want)
		}
	}
}
