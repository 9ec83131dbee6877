package tcc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// stubborn refuses the decided call.
func stubborn(c branch.Call) (before, after error) {
	if c.Operation != branch.Try {
		return branch.Fail(errors.New("I will not")), nil
	}
	return nil, nil
}

// heard has the events of hooks.
type heard struct {
	dead  txntest.Events[observe.TCCDead]
	ended txntest.Events[observe.TCCEnded]
	tried txntest.Events[observe.TCCTried]
}

func (h *heard) hooks() *observe.TCC {
	return &observe.TCC{Dead: h.dead.Add, Ended: h.ended.Add, Tried: h.tried.Add}
}

// buried is a transaction of two branches whose second refuses to be confirmed, or, if
// the third refuses its try, to be cancelled.
func buried(t *testing.T, confirmed bool) (r *rig, good, bad *venue, h *heard) {
	t.Helper()
	h = &heard{}
	good, bad = newVenue("good", 1), newVenue("bad", 1)
	third := newVenue("third", map[bool]int{true: 1, false: 0}[confirmed])
	third.bad = slowTry(time.Second) // when the others hold
	bad.bad = stubborn
	r = serve(t, nil, 1, &Options{Hooks: h.hooks(), Remind: time.Hour}, good, bad, third)
	_, _ = r.run(t.Context(), "1", good, bad, third)
	return r, good, bad, h
}

// TestDeadLetter: a branch that refuses the decided call is called a few times; the others
// are settled, the branch is reported repeatedly, and nothing is forgotten.
func TestDeadLetter(t *testing.T) {
	for decision, states := range map[Decision][2]string{Confirm: {"confirmed", "held"}, Cancel: {"cancelled", "held"}} {
		bubble(t, func(t *testing.T) {
			r, good, bad, h := buried(t, decision == Confirm)
			o, err := r.Wait(t.Context(), "1")
			wantKind(t, err, interlock.Uncertain, ErrDeadLetter)
			if o.State != DeadLetter || o.Decision != decision || len(o.Dead) != 1 || o.Dead[0] != (StepError{Step: "bad", Err: "I will not", Attempts: 5}) || !strings.Contains(err.Error(), "I will not") {
				t.Errorf("%+v, %v", o, err)
			}
			if good.state("1") != states[0] || bad.state("1") != states[1] {
				t.Errorf("%s: %s, %s", decision, good.state("1"), bad.state("1"))
			}
			time.Sleep(3*time.Hour + time.Minute)
			synctest.Wait()
			if dead, ended := h.dead.All(), h.ended.All(); len(dead) != 4 || dead[3].Branches[0] != "bad" || len(ended) != 0 {
				t.Errorf("reported %+v, ended %v", dead, ended)
			}
			refusals := 0
			for _, e := range h.tried.All() {
				if e.Branch == "bad" {
					if refusals++; (e.Again == 0) != (refusals == 5) {
						t.Errorf("after refusal %d it is called again in %v", refusals, e.Again)
					}
				}
			}
			txntest.Equal(t, "refusals", refusals, 5)
			unscheduled(t, r.store.Journal)
			if n, err := r.coordinator.Journal().Forget(t.Context(), time.Now().Add(time.Hour), 100); n != 0 || err != nil {
				t.Errorf("%d forgotten, %v", n, err)
			}
		})
	}
}

var somebody = By{Actor: "eve", Reason: "the hotel has called"}

// TestOperator: an operator retries a dead branch, skips it, or ends the transaction.
func TestOperator(t *testing.T) {
	for name, c := range map[string]struct {
		heal  bool
		order func(ctx context.Context, o *Operator) error
		state State
		bad   string
		last  string
	}{
		"retry":                {true, func(ctx context.Context, o *Operator) error { return o.Retry(ctx, "1", "bad", somebody) }, Confirmed, "confirmed", "end:"},
		"retry all":            {true, func(ctx context.Context, o *Operator) error { return o.Retry(ctx, "1", "", somebody) }, Confirmed, "confirmed", "end:"},
		"retry what is broken": {false, func(ctx context.Context, o *Operator) error { return o.Retry(ctx, "1", "bad", somebody) }, DeadLetter, "held", "dead:bad"},
		"skip":                 {false, func(ctx context.Context, o *Operator) error { return o.Skip(ctx, "1", "bad", somebody) }, Confirmed, "held", "end:"},
		"resolve":              {false, func(ctx context.Context, o *Operator) error { return o.Resolve(ctx, "1", somebody) }, Resolved, "held", "end:"},
	} {
		bubble(t, func(t *testing.T) {
			r, _, bad, _ := buried(t, true)
			_, err := r.Wait(t.Context(), "1")
			wantKind(t, err, interlock.Uncertain, ErrDeadLetter)
			if c.heal {
				bad.mu.Lock()
				bad.bad = nil
				bad.mu.Unlock()
			}
			operator := NewOperator(r.coordinator.Journal())
			for o, err := range operator.List(t.Context(), Filter{Unfinished: true}) {
				if o.ID != "1" || o.State != DeadLetter || err != nil {
					t.Errorf("%s: %+v, %v", name, o, err)
				}
			}
			ok(t, c.order(t.Context(), operator))
			time.Sleep(time.Minute)
			o, err := r.Wait(t.Context(), "1")
			if skipped := name == "skip"; skipped != slices.Equal(o.Skipped, []string{"bad"}) || !skipped && o.Skipped != nil {
				t.Errorf("%s: skipped %v", name, o.Skipped)
			}
			if o.State != c.state || (err == nil) != (c.state != DeadLetter) || bad.state("1") != c.bad {
				t.Errorf("%s: %+v, %v, %s", name, o, err, bad.state("1"))
			}
			records := txntest.Records(t, r.store.Journal, "1")
			if got := records[len(records)-1]; got != c.last {
				t.Errorf("%s: %v", name, records)
			}
			_, entries, err := r.coordinator.Journal().Open(t.Context(), "1")
			ok(t, err)
			signed := false
			for _, e := range entries {
				signed = signed || strings.Contains(string(e.Data), somebody.Actor) && strings.Contains(string(e.Data), somebody.Reason)
			}
			if !signed {
				t.Errorf("%s: no operator is recorded", name)
			}
			unscheduled(t, r.store.Journal)
		})
	}
}

// TestOperatorRefused: a command that the state of a transaction does not allow, or without
// an actor, is refused, and nothing is written.
func TestOperatorRefused(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
		r := serve(t, nil, 1, nil, hotel)
		ok(t, txntest.Second(r.run(t.Context(), "1", hotel)))
		ok(t, txntest.Second(r.Wait(t.Context(), "1")))
		o, ctx := NewOperator(r.coordinator.Journal()), t.Context()
		ok(t, txntest.Second(r.coordinator.Journal().Begin(ctx, "3", "saga:order", time.Now(), letters["cancel"])))
		for name, err := range map[string]error{
			"retry": o.Retry(ctx, "1", "", somebody), "skip": o.Skip(ctx, "1", "hotel", somebody), "resolve": o.Resolve(ctx, "1", somebody),
			"none": o.Retry(ctx, "2", "", somebody),
		} {
			if wantKind(t, err, interlock.Definite, nil); t.Failed() {
				t.Fatal(name)
			}
		}
		wantKind(t, o.Retry(ctx, "3", "", somebody), interlock.Bug, ErrMismatch)
		for name, err := range map[string]error{
			"no actor": o.Retry(ctx, "1", "", By{Reason: "x"}), "no reason": o.Resolve(ctx, "1", By{Actor: "x"}), "no branch": o.Skip(ctx, "1", "", somebody),
			"long reason": o.Resolve(ctx, "1", By{Actor: "x", Reason: strings.Repeat("x", 1001)}), "long name": o.Resolve(ctx, "1", By{Actor: strings.Repeat("x", 256), Reason: "x"}),
			"no UTF-8": o.Resolve(ctx, "1", By{Actor: "x", Reason: "\xff"}),
		} {
			if wantKind(t, err, interlock.Bug, nil); t.Failed() {
				t.Fatal(name)
			}
		}
		for range o.List(ctx, Filter{Unfinished: true}) {
			t.Error("what has ended is listed")
		}
		txntest.Equal(t, "appends", r.store.Appends(), 3)
	})
}

// TestStrangeResource: a process that lacks a resource settles the others, reports the
// missing one, and leaves the rest to a process that has it.
func TestStrangeResource(t *testing.T) {
	atBoth(t, 1, 1, func(t *testing.T, hotel, flight *venue) {
		r := idle(t, nil, nil, nil, hotel, flight)
		ok(t, txntest.Second(r.run(t.Context(), "1", hotel, flight)))
		var failed txntest.Events[observe.CoordinatorFailed]
		poor := rig{Engine: build(t, r.store, nil, &coordinator.Options{Hooks: &observe.Coordinator{Failed: failed.Add}}, hotel)}
		poor.serve(t, 1)
		time.Sleep(time.Second)
		poor.stop()
		<-poor.served
		if all := failed.All(); len(all) == 0 || !errors.Is(all[0].Err, ErrMismatch) || !strings.Contains(all[0].Err.Error(), `"flight"`) {
			t.Errorf("%v", all)
		}
		if hotel.state("1") != "confirmed" || flight.state("1") != "held" {
			t.Errorf("%s, %s", hotel.state("1"), flight.state("1"))
		}
		r.serve(t, 2)
		ok(t, txntest.Second(r.Wait(t.Context(), "1")))
		if n := hotel.called("1/hotel/confirm"); n != 1 || flight.state("1") != "confirmed" {
			t.Errorf("%d calls, %s", n, flight.state("1"))
		}
	})
}

// TestManyStrangers: processes that lack the resource of the last branch, and so call nothing, do not halt the
// transaction.
func TestManyStrangers(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
		r := idle(t, nil, nil, nil, hotel)
		ok(t, txntest.Second(r.run(t.Context(), "1", hotel)))
		for n := int64(1); n < 17; n++ {
			poor := serve(t, r.store, n, nil)
			poor.stop()
			<-poor.served
		}
		r.serve(t, 17)
		ok(t, txntest.Second(r.Wait(t.Context(), "1")))
	})
}
