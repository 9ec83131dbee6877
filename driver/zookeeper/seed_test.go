package zookeeper

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const years = 5 * 365 * 24 * time.Hour

// TestClockOfOneClient: one that is dated years ahead raises nothing.
func TestClockOfOneClient(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	_, err := Open(t.Context(), &Options{Servers: []string{server.Addr()}, Now: func() time.Time { return time.Now().Add(years) }})
	var clock *driver.ClockError
	if !errors.As(err, &clock) || interlock.Kind(err) != interlock.Definite {
		t.Fatalf("opened years ahead: %v", err)
	}
	g := mustAcquire(t, open(t, &Options{Servers: []string{server.Addr()}}), demand("n", "a"))
	if driver.Plausible(g.Token.Counter(), time.Now()) != nil {
		t.Errorf("token of %d", g.Token.Counter())
	}
}

// TestImplausibleBase is refused by those who open and those who are open, until it
// is repaired on record.
func TestImplausibleBase(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	options := &Options{Servers: []string{server.Addr()}}
	d := open(t, options)
	before := mustAcquire(t, d, demand("before", "a")).Token
	operator := dial(t, server.Addr())
	_, stat, err := operator.Get("/interlock/interlock.base")
	testbed.OK(t, err)
	bad := fmt.Sprintf(`{"base":%d,"anchor":%d}`, interlock.CounterAt(time.Now().Add(years)), stat.Mzxid)
	_, err = operator.Set("/interlock/interlock.base", []byte(bad), -1)
	testbed.OK(t, err)
	_, openErr := Open(t.Context(), options)
	_, acquireErr := d.Acquire(bounded(t), demand("n", "b").Request)
	for _, err := range []error{openErr, acquireErr} {
		var implausible *driver.ImplausibleError
		if !errors.As(err, &implausible) || interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "interlock tokens repair") {
			t.Errorf("an implausible base: %v", err)
		}
	}
	mustRelease(t, d, demand("n", "b"))
	repair := *options
	repair.Seed.Repair = &driver.Repair{Reason: "a wrong clock", By: "me"}
	for i, d := range []*Driver{open(t, &repair), open(t, options), d} {
		after := mustAcquire(t, d, demand(fmt.Sprint("n", i), "c")).Token
		if after <= before || driver.Plausible(after.Counter(), time.Now()) != nil {
			t.Errorf("step %d: token %d after %d", i, after, before)
		}
		before = after
	}
	records, err := d.Breaks(t.Context(), driver.BaseName, 10)
	if err != nil || len(records) != 1 || records[0].Reason != "a wrong clock" || records[0].By != "me" {
		t.Errorf("the record is %+v, %v", records, err)
	}
}

// TestTokensAfterAMove are above those of the system that was left.
func TestTokensAfterAMove(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	last, err := interlock.NewToken(interlock.CounterAt(time.Now().Add(time.Hour)), 7)
	testbed.OK(t, err)
	d := open(t, &Options{Servers: []string{server.Addr()}, Seed: driver.Seed{After: last}})
	if got := mustAcquire(t, d, demand("n", "a")).Token; got <= last {
		t.Errorf("token %d after %d", got, last)
	}
}
