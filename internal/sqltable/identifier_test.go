package sqltable_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

func TestIdentifier(t *testing.T) {
	for _, c := range []struct {
		dialect      driver.Dialect
		name, suffix string
		want         string
	}{
		{driver.Postgres, "account", "", `"account"`},
		{driver.Postgres, "bank.Account", "_marks", `"bank"."Account_marks"`},
		{driver.Postgres, `a"b`, "", `"a""b"`},
		{driver.MariaDB, "a`b; drop table x", "", "`a``b; drop table x`"},
		{driver.MariaDB, "bank.account", "", "`bank`.`account`"},
		{driver.Postgres, strings.Repeat("x", 63), "", `"` + strings.Repeat("x", 63) + `"`},
	} {
		got, err := sqltable.Identifier(c.dialect, c.name, c.suffix)
		if err != nil || got != c.want {
			t.Errorf("%s %q: %s, %v; want %s", c.dialect, c.name, got, err, c.want)
		}
	}
}

func TestWhatIsNoIdentifier(t *testing.T) {
	for _, name := range []string{"", "a.", ".a", "a.b.c", "a\x00b", strings.Repeat("x", 65)} {
		for _, d := range []driver.Dialect{driver.Postgres, driver.MariaDB} {
			_, err := sqltable.Identifier(d, name, "")
			if !errors.Is(err, interlock.ErrName) || interlock.Kind(err) != interlock.Bug {
				t.Errorf("%s %q: %v", d, name, err)
			}
		}
	}
	if _, err := sqltable.Identifier("oracle", "a", ""); interlock.Kind(err) != interlock.Bug {
		t.Errorf("an unknown dialect: %v", err)
	}
}
