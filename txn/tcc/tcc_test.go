package tcc

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// TestConfirmed: all hold, the decision is durable before the answer, and all are
// confirmed after it. It costs n tries and one append, then n calls and one append.
func TestConfirmed(t *testing.T) {
	atBoth(t, 1, 1, func(t *testing.T, hotel, flight *venue) {
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
		txntest.Equal(t, "appends in all", r.store.Appends(), 2)
		same(t, "records", txntest.Records(t, r.store.Journal, "1"), "tried:hotel", "tried:flight", "decide:confirm", "done:hotel", "done:flight", "end:")
		unscheduled(t, r.store.Journal)
	})
}

// TestRefused: one refuses, the decision to cancel is durable before the answer, and the holds are
// released after it; the one that refused is not called again.
func TestRefused(t *testing.T) {
	atBoth(t, 1, 0, func(t *testing.T, hotel, flight *venue) {
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
		txntest.Equal(t, "appends", r.store.Appends(), 2)
	})
}

// TestStoppedByARefusal: a branch that another branch's refusal stops has not itself refused. It may
// hold, so it is cancelled.
func TestStoppedByARefusal(t *testing.T) {
	atBoth(t, 1, 0, func(t *testing.T, hotel, flight *venue) {
		hotel.commits, flight.bad = true, slowTry(time.Second)
		r := serve(t, nil, 1, nil, hotel, flight)
		_, err := r.run(t.Context(), "1", hotel, flight)
		wantKind(t, err, interlock.Definite, errFull)
		_, err = r.Wait(t.Context(), "1")
		wantKind(t, err, interlock.Definite, ErrCancelled)
		txntest.Equal(t, "the hotel is", hotel.state("1"), "cancelled")
	})
}

// TestDefaults: options that are not set, or invalid, get the documented defaults; others do not
// change.
func TestDefaults(t *testing.T) {
	policy := Policy{First: 50 * time.Millisecond, Max: time.Minute, Attempts: 5, Refusals: 5}
	for _, p := range []Policy{{}, {First: -1, Max: -1, Attempts: -1, Refusals: -1}} {
		if got := p.resolve(); got != policy {
			t.Errorf("%+v", got)
		}
	}
	got, err := (*Options)(nil).resolve()
	if want := (Options{time.Minute, 10 * time.Second, 10 * time.Second, policy, 24 * time.Hour, got.Hooks}); got != want || got.Hooks == nil || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	set := Options{2 * time.Hour, time.Hour, time.Second, Policy{1, 2, 3, 4}, time.Minute, &observe.TCC{}}
	got, err = set.resolve()
	if got.Hooks = set.Hooks; got != set || err != nil { // those that are nil log
		t.Errorf("%+v, %v", got, err)
	}
}

// ear has the events of hooks, one a line.
type ear struct{ lines txntest.Events[string] }

func (e *ear) hear(format string, args ...any) { e.lines.Add(fmt.Sprintf(format, args...)) }

// heard returns the events since the last call, sorted, because decisions and calls are concurrent.
func (e *ear) heard() []string {
	synctest.Wait()
	return slices.Sorted(slices.Values(e.lines.Take()))
}

func (e *ear) hooks() *observe.TCC {
	return &observe.TCC{
		Decided: func(d observe.TCCDecided) {
			e.hear("%s %s: %s: %s", d.Transaction, d.Type, d.Decision, d.Reason)
		},
		Tried: func(d observe.TCCTried) {
			e.hear("%s %s: %s %s %d full=%v again in %v", d.Transaction, d.Type, d.Operation, d.Branch, d.Attempt, errors.Is(d.Err, errFull), d.Again)
		},
		Ended: func(d observe.TCCEnded) { e.hear("%s %s: %s", d.Transaction, d.Type, d.State) },
	}
}

// TestHooksAreTold: hooks receive a decision once, in the process that made it; every failed call with
// the time of its repetition, which is not earlier; and the end.
func TestHooksAreTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hotel, flight, e := newVenue("hotel", 1), newVenue("flight", 0), &ear{}
		calls := map[branch.Operation]time.Time{}
		hotel.bad = func(c branch.Call) (before, after error) {
			calls[c.Operation] = time.Now()
			if c.Attempt == 1 {
				return branch.Retry(errFull), nil
			}
			return nil, nil
		}
		r := serve(t, nil, 1, &Options{Hooks: e.hooks()}, hotel, flight)
		ok(t, txntest.Second(r.run(t.Context(), "1", hotel)))
		tried := time.Since(began)
		ok(t, txntest.Second(r.Wait(t.Context(), "1")))
		same(t, "confirmed", e.heard(), "1 booking: CONFIRMED", "1 booking: confirm hotel 1 full=true again in 25ms",
			"1 booking: confirm: ", "1 booking: try hotel 1 full=true again in 25ms")
		if apart := calls[branch.Confirm].Sub(calls[branch.Try]); tried < 25*time.Millisecond || apart < 25*time.Millisecond {
			t.Errorf("tried for %v, confirmed %v later", tried, apart)
		}
		_, err := r.run(t.Context(), "1", hotel)
		ok(t, err)
		_, _ = r.run(t.Context(), "2", flight)
		_, _ = r.Wait(t.Context(), "2")
		same(t, "refused", e.heard(), "2 booking: CANCELLED", `2 booking: cancel: branch "flight": full`, "2 booking: try flight 1 full=true again in 0s")
		for range 2 {
			ok(t, txntest.Second(r.Decide(t.Context(), "3", "hotel")))
		}
		_, _ = r.Wait(t.Context(), "3")
		same(t, "asked", e.heard(), "3 unknown: CANCELLED", `3 unknown: cancel: branch "hotel" asked, and nothing was decided`)
	})
}

// TestTriesEndWithTheirTime: the deadline of a try is its timeout, but not after the time to confirm.
func TestTriesEndWithTheirTime(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{time.Hour: 50 * time.Second, time.Second: time.Second} {
		atHotel(t, 1, func(t *testing.T, hotel *venue) {
			var deadline time.Time
			hotel.bad = func(c branch.Call) (before, after error) {
				if c.Operation == branch.Try {
					deadline = c.Deadline
				}
				return nil, nil
			}
			r := serve(t, nil, 1, &Options{Hold: time.Minute, Margin: 10 * time.Second, Timeout: timeout}, hotel)
			begun := time.Now()
			_, err := r.run(t.Context(), "1", hotel)
			if got := deadline.Sub(begun); got != want || err != nil {
				t.Errorf("%v, want %v; %v", got, want, err)
			}
		})
	}
}

// TestNoTryBehindARefusal: after another branch has refused, a branch that waits for its next try is
// not tried again. It is cancelled only if it may have a hold.
func TestNoTryBehindARefusal(t *testing.T) {
	for fails, want := range map[error]string{branch.Retry(errFull): "", errNetwork: "blocked"} {
		atBoth(t, 1, 0, func(t *testing.T, hotel, flight *venue) {
			flight.bad = slowTry(10 * time.Millisecond)
			tries := 0
			hotel.bad = func(c branch.Call) (before, after error) {
				if c.Operation == branch.Try {
					tries++
					return fails, nil
				}
				return nil, nil
			}
			r := serve(t, nil, 1, nil, hotel, flight)
			begun := time.Now()
			_, err := r.run(t.Context(), "1", hotel, flight)
			if took := time.Since(begun); took != 10*time.Millisecond { // Run does not wait for its delay either
				t.Errorf("it took %v", took)
			}
			if !errors.Is(err, errFull) || !strings.Contains(err.Error(), "flight") {
				t.Errorf("%v", err)
			}
			_, _ = r.Wait(t.Context(), "1")
			if got := hotel.state("1"); tries != 1 || got != want {
				t.Errorf("%v: %d tries, then it is %q", fails, tries, got)
			}
		})
	}
}
