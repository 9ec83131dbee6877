package tcc

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// TestConfirmed: all hold, the decision is durable before the answer, and all are
// confirmed after it. It costs n tries and one append, then n calls and one append.
func TestConfirmed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hotel, flight := newVenue("hotel", 1), newVenue("flight", 1)
		r := serve(t, nil, 1, nil, hotel, flight)
		hotel.bad = func(c branch.Call) (before, after error) {
			if n := r.store.Appends(); c.Operation == branch.Try && n != 0 || c.Operation == branch.Confirm && n != 1 {
				t.Errorf("%d appends when it was called to %s", n, c.Operation)
			}
			return nil, nil
		}
		o, err := r.run(t.Context(), "1", hotel, flight)
		ok(t, err)
		if o.State != Confirming || o.Decision != Confirm || o.Type != "booking" || o.Err() != nil {
			t.Errorf("%+v", o)
		}
		h, err := flight.define().Try("seat").OutputOf(o)
		if h != "hold of seat" || err != nil {
			t.Errorf("%q, %v", h, err)
		}
		o, err = r.Wait(t.Context(), "1")
		if o.State != Confirmed || err != nil {
			t.Errorf("%+v, %v", o, err)
		}
		for _, v := range []*venue{hotel, flight} {
			if tries, confirms := v.called("1/"+v.name+"/try"), v.called("1/"+v.name+"/confirm"); tries != 1 || confirms != 1 || v.state("1") != "confirmed" {
				t.Errorf("%s: %d tries, %d confirms, %s", v.name, tries, confirms, v.state("1"))
			}
			v.rules(t)
		}
		if n := r.store.Appends(); n != 2 {
			t.Errorf("%d appends in all", n)
		}
		same(t, "records", txntest.Records(t, r.store.Journal, "1"), "tried:hotel", "tried:flight", "decide:confirm", "done:hotel", "done:flight", "end:")
		unscheduled(t, r.store.Journal)
	})
}

// TestRefused: one refuses, the decision to cancel is durable before the answer, and
// what is held is free after it; the one that refused is not called again.
func TestRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hotel, flight := newVenue("hotel", 1), newVenue("flight", 0)
		r := serve(t, nil, 1, nil, hotel, flight)
		_, err := r.run(t.Context(), "1", hotel, flight)
		wantKind(t, err, interlock.Definite, ErrCancelled)
		if !errors.Is(err, errFull) {
			t.Errorf("the branch's own error is lost: %v", err)
		}
		synctest.Wait()
		o, err := r.Wait(t.Context(), "1")
		wantKind(t, err, interlock.Definite, ErrCancelled)
		if o.State != Cancelled || o.Reason != `branch "flight": full` {
			t.Errorf("%+v", o)
		}
		if hotel.state("1") == "held" || flight.called("1/flight/cancel") != 0 {
			t.Errorf("hotel is %s, flight was cancelled %d times", hotel.state("1"), flight.called("1/flight/cancel"))
		}
		if n := r.store.Appends(); n != 2 {
			t.Errorf("%d appends", n)
		}
	})
}

// TestStoppedByARefusal: a branch that another branch's refusal stops has not itself refused. It may
// hold, so it is cancelled.
func TestStoppedByARefusal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hotel, flight := newVenue("hotel", 1), newVenue("flight", 0)
		hotel.commits, flight.bad = true, slowTry(time.Second)
		r := serve(t, nil, 1, nil, hotel, flight)
		_, err := r.run(t.Context(), "1", hotel, flight)
		wantKind(t, err, interlock.Definite, errFull)
		_, err = r.Wait(t.Context(), "1")
		wantKind(t, err, interlock.Definite, ErrCancelled)
		if hotel.state("1") != "cancelled" {
			t.Errorf("the hotel is %s", hotel.state("1"))
		}
	})
}
