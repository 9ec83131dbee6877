package limit_test

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/flow/limit"
)

func TestParseRate(t *testing.T) {
	for text, want := range map[string]limit.Rate{
		"100/s": limit.PerSecond(100), "20/m": limit.PerMinute(20), "3/h": limit.PerHour(3), "5/90s": {Count: 5, Period: 90 * time.Second}, "7/1h30m": {Count: 7, Period: 90 * time.Minute}, "1/ms": {Count: 1, Period: time.Millisecond},
	} {
		if r, err := limit.ParseRate(text); err != nil || r != want {
			t.Errorf("%s: %+v, %v", text, r, err)
		}
	}
	for _, text := range []string{"", "100", "/s", "x/s", "1/", "1/x", "1.5/s", "0/s", "-1/s", "1/-1s", "1/0s", "1/ns", "1/s/s", "1/9999999h"} {
		if r, err := limit.ParseRate(text); err == nil {
			t.Errorf("%q is read as %+v", text, r)
		}
	}
}
