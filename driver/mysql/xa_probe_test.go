package mysql

import "testing"

// TestUnsafeTopologies: facts of servers that no test runs.
func TestUnsafeTopologies(t *testing.T) {
	for _, c := range []struct {
		name        string
		facts       facts
		filter, log string
		safe        bool
	}{
		{"plain", facts{version: "10.11.6-MariaDB"}, "", "", true},
		{"the first", facts{version: "10.5.0-MariaDB-log"}, "", "", true},
		{"other logs", facts{version: "12.3.1-MariaDB"}, "", "aria", true},
		{"too old", facts{version: "10.4.34-MariaDB"}, "", "", false},
		{"MySQL", facts{version: "8.0.36"}, "", "", false},
		{"Galera", facts{version: "10.11.6-MariaDB", galera: true}, "", "", false},
		{"a replica", facts{version: "10.11.6-MariaDB", readOnly: true}, "", "", false},
		{"filters", facts{version: "10.11.6-MariaDB"}, "REPLICATE_DO_DB", "", false},
		{"a log in InnoDB", facts{version: "12.3.1-MariaDB"}, "", "innodb", false},
	} {
		if why := c.facts.refuseXA(c.filter, "shop", c.log); (why == nil) != c.safe {
			t.Errorf("%s: %v", c.name, why)
		}
	}
}
