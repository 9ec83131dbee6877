package driver_test

import (
	"slices"
	"testing"

	"github.com/interlock-dev/interlock/driver"
)

// Without a number of lanes, they are sent one after the other.
func TestSendLanesOneAtATime(t *testing.T) {
	for _, n := range []int{0, -1} {
		sent := 0
		errs := driver.SendLanes([]driver.Message{{ID: "a", Topic: "t"}, {ID: "b", Topic: "t"}}, n, func(driver.Message) error { sent++; return nil })
		if sent != 2 || !slices.Equal(errs, []error{nil, nil}) {
			t.Errorf("%d lanes: %d messages sent, %v", n, sent, errs)
		}
	}
}
