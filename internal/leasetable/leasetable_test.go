package leasetable

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestDifferingNames(t *testing.T) {
	before := map[string]string{"same": "1", "changed": "1", "gone": "1"}
	now := map[string]string{"same": "1", "changed": "2", "new": ""}
	if got := differing(before, now); !slices.Equal(got, []string{"changed", "gone", "new"}) {
		t.Errorf("%q", got)
	}
}

func TestSeedJudgesByTheServersClock(t *testing.T) {
	now := interlock.CounterAt(time.Now())
	far := now + 2*interlock.MaxAhead.Microseconds()
	after, err := interlock.NewToken(now+1000, 0)
	testbed.OK(t, err)
	repair := &driver.Repair{Reason: "r", By: "b"}
	for name, tt := range map[string]struct {
		last int64
		seed driver.Seed
		want string
		err  bool
	}{
		"as it is":            {now, driver.Seed{}, "", false},
		"after a move":        {now, driver.Seed{After: after}, "raised", false},
		"implausible":         {far, driver.Seed{}, "", true},
		"implausible, repair": {far, driver.Seed{Repair: repair}, "lowered", false},
	} {
		got := ""
		err := Counters{Last: tt.last, Now: now,
			Raise: func(floor int64) error { got = "raised"; return nil },
			Lower: func(string, *driver.Repair) error { got = "lowered"; return nil },
		}.Seed(tt.seed)
		var implausible *driver.ImplausibleError
		if got != tt.want || errors.As(err, &implausible) != tt.err {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
