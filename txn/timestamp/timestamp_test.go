package timestamp

import (
	"testing"
	"time"
)

func TestTimestampsAreTimesInMilliseconds(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 5e6, time.UTC)
	ts := Of(at)
	if !ts.Time().Equal(at) || !(ts + 7).Time().Equal(at) {
		t.Errorf("%v became %v", at, ts.Time())
	}
	if later := (ts + 7).Add(3 * time.Second); later <= ts+7 || later.Sub(ts) != 3*time.Second {
		t.Errorf("three seconds later is %v later", later.Sub(ts))
	}
	if far := Of(time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)); far <= ts {
		t.Errorf("the year 2200 is %d, 2026 is %d", far, ts)
	}
}
