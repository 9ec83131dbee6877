package backend_test

import (
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/memory"
)

// Callers always see names without the prefix. Names outside it are neither shown
// nor changed.
func TestPrefix(t *testing.T) {
	all, team := locksAt(t, "memory://prefix"), locksAt(t, "memory://prefix?prefix=team/")
	acquire := func(l backend.Locks, name, owner string) error {
		_, err := l.Acquire(t.Context(), driver.Request{Name: name, Owner: owner, NoWait: true})
		return err
	}
	if err := errors.Join(acquire(team, "job", "a"), acquire(all, "job", "b"), acquire(all, "other", "c")); err != nil {
		t.Fatal(err)
	}
	var held *interlock.HeldError
	if err := acquire(team, "job", "d"); !errors.As(err, &held) || held.Name != "job" || held.Owner != "a" {
		t.Errorf("it is held: %v", err)
	}
	if state, err := team.Lock(t.Context(), "job"); err != nil || state.Name != "job" || state.Holder == nil || state.Holder.Owner != "a" {
		t.Errorf("%+v, %v", state, err)
	}
	locks, more, err := team.Locks(t.Context(), "", 10)
	if err != nil || more || len(locks) != 1 || locks[0].Name != "job" {
		t.Errorf("%+v, %v, %v", locks, more, err)
	}
	forcedRelease(t, all, "job", "b")
	forcedRelease(t, team, "job", "a")
	for _, name := range []string{"", "job"} {
		if records, err := team.Breaks(t.Context(), name, 1); err != nil || len(records) != 1 || records[0].Name != "job" || records[0].Owner != "a" {
			t.Errorf("of %q: %+v, %v", name, records, err)
		}
		if records, err := team.Breaks(t.Context(), name, 9); err != nil || len(records) != 1 {
			t.Errorf("of %q: %+v, %v", name, records, err)
		}
	}
}

func forcedRelease(t *testing.T, l backend.Locks, name, owner string) {
	t.Helper()
	record, ok, err := l.Break(t.Context(), driver.Break{Name: name, Owner: owner, Reason: "gone", By: "alice"})
	if err != nil || !ok || record.Name != name || record.At.After(time.Now().Add(time.Hour)) {
		t.Fatalf("%+v, %v, %v", record, ok, err)
	}
}

// locksAt opens the locks of a URL for one test.
func locksAt(t *testing.T, url string) backend.Locks {
	t.Helper()
	b := open(t, url)
	l, err := b.Fenced(t.Context(), backend.LockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}
