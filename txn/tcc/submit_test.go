package tcc

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// submit submits a transaction with one branch at each venue.
func (r *rig) submit(ctx context.Context, id string, venues ...*venue) (Outcome, error) {
	var branches []Branch
	for _, v := range venues {
		branches = append(branches, v.define().Try("seat"))
	}
	return r.Submit(ctx, "booking", id, branches...)
}

// TestSubmitRunsOnce: of 50 copies in two processes one tries the branches, and all return
// its outcome.
func TestSubmitRunsOnce(t *testing.T) {
	atBoth(t, 1, 1, func(t *testing.T, hotel, flight *venue) {
		hotel.bad, flight.bad = slowTry(time.Second), slowTry(time.Second)
		store := txntest.NewJournal()
		one := serve(t, store, 1, nil, hotel, flight)
		two := idle(t, store, nil, nil, hotel, flight)
		var work sync.WaitGroup
		for i := range 50 {
			r := []*rig{one, two}[i%2]
			work.Go(func() {
				o, err := r.submit(context.Background(), "1", hotel, flight)
				if h, unknown := hotel.define().Try("seat").OutputOf(o); err != nil || unknown != nil || h != "hold of seat" {
					t.Errorf("%+v, %v, %q, %v", o, err, h, unknown)
				}
			})
		}
		synctest.Wait()
		if o, err := two.Look(t.Context(), "1"); o.State != Trying || o.Decision != "" || err != nil {
			t.Errorf("before the decision: %+v, %v", o, err)
		}
		work.Wait()
		if h, f := hotel.called("1/hotel/try"), flight.called("1/flight/try"); h != 1 || f != 1 {
			t.Errorf("%d and %d tries", h, f)
		}
		o, err := two.Wait(t.Context(), "1")
		if o.State != Confirmed || err != nil {
			t.Errorf("%+v, %v", o, err)
		}
		same(t, "records", txntest.Records(t, store.Journal, "1")[:6], "open:", "tried:hotel", "tried:flight", "held:hotel", "held:flight", "decide:confirm")
		o, err = one.run(t.Context(), "1", hotel, flight) // attaches to it as to a Run
		if o.Decision != Confirm || err != nil || hotel.called("1/hotel/try") != 1 {
			t.Errorf("a Run: %+v, %v", o, err)
		}
		_, err = one.Submit(t.Context(), "booking", "1", hotel.define().Try("bed"))
		wantKind(t, err, interlock.Bug, ErrMismatch)
		one.Close(t.Context())
		two.Close(t.Context())
	})
}

// TestLaunchedOnce: of two processes that both found no transaction, one begins it, also in the
// same millisecond.
func TestLaunchedOnce(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
		store := txntest.NewJournal()
		launch := func(r *rig) error {
			attempt := &run{engine: r.Engine, id: "1", kind: protocol + ":booking", began: r.coordinator.Now()}
			ok(t, attempt.prepare("booking", []Branch{hotel.define().Try("seat")}))
			_, err := attempt.launch(t.Context())
			return err
		}
		one, two := serve(t, store, 1, nil, hotel), idle(t, store, nil, nil, hotel)
		ok(t, launch(one))
		if err := launch(two); !errors.Is(err, journal.ErrExists) {
			t.Errorf("the second process: %v", err)
		}
		one.Close(t.Context())
		two.Close(t.Context())
	})
}

// TestSubmitterLeaves: a caller that leaves changes nothing, and a later one gets the outcome
// of the run.
func TestSubmitterLeaves(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
		hotel.bad = slowTry(time.Second)
		r := serve(t, nil, 1, nil, hotel)
		for range 2 { // the one that runs it, and one that attaches
			ctx, leave := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, err := r.submit(ctx, "1", hotel)
			leave()
			wantKind(t, err, interlock.Uncertain, context.DeadlineExceeded)
		}
		o, err := r.submit(t.Context(), "1", hotel)
		if o.Decision != Confirm || err != nil || hotel.called("1/hotel/try") != 1 {
			t.Errorf("%+v, %v, %d tries", o, err, hotel.called("1/hotel/try"))
		}
		r.Close(t.Context())
		_, err = r.submit(t.Context(), "2", hotel)
		wantKind(t, err, interlock.Bug, interlock.ErrClosed)
	})
}

// TestSubmittedRunDies: if a process dies before its decision, the transaction is cancelled
// after the time of the holds, and each branch is called.
func TestSubmittedRunDies(t *testing.T) {
	atBoth(t, 1, 1, func(t *testing.T, hotel, flight *venue) {
		store := txntest.NewJournal()
		owner := serve(t, store, 1, nil, hotel, flight)
		crash := crashAt(1)
		dead := idle(t, &watched{Journal: store.Journal, Points: nil}, nil, nil, hotel.by(crash), flight.by(crash))
		dead.store.Fail = func(n int, _ driver.Append) (before, after error) {
			if n > 1 {
				return txntest.ErrCrashed, nil
			}
			return nil, nil
		}
		go func() { _, _ = dead.submit(context.Background(), "1", hotel.by(crash), flight.by(crash)) }()
		synctest.Wait()
		began := time.Now()
		o, err := owner.submit(t.Context(), "1", hotel, flight)
		wantKind(t, err, interlock.Definite, ErrCancelled)
		if took := time.Since(began); o.Decision != Cancel || took < 50*time.Second || took > 70*time.Second {
			t.Errorf("%+v after %v", o, took)
		}
		o, _ = owner.Wait(t.Context(), "1")
		if o.State != Cancelled || hotel.called("1/hotel/cancel") == 0 || flight.called("1/flight/cancel") == 0 {
			t.Errorf("%+v", o)
		}
		if again, err := owner.submit(t.Context(), "1", hotel, flight); again.Decision != Cancel || !errors.Is(err, ErrCancelled) {
			t.Errorf("again: %+v, %v", again, err)
		}
		unscheduled(t, store.Journal)
		time.Sleep(time.Minute) // the dead one gives up
		owner.Close(t.Context())
		dead.Close(t.Context())
	})
}

// TestSubmittedIsDecidedByAParticipant that asks before the run has decided: the run has
// the participant's decision.
func TestSubmittedIsDecidedByAParticipant(t *testing.T) {
	atBoth(t, 1, 1, func(t *testing.T, hotel, flight *venue) {
		flight.bad = slowTry(time.Second)
		r := serve(t, nil, 1, nil, hotel, flight)
		done := make(chan error, 1)
		go func() {
			_, err := r.submit(context.Background(), "1", hotel, flight)
			done <- err
		}()
		synctest.Wait()
		d, err := r.Decide(t.Context(), "1", "hotel")
		if d != Cancel || err != nil {
			t.Errorf("%q, %v", d, err)
		}
		wantKind(t, <-done, interlock.Definite, ErrCancelled)
		if o, _ := r.Wait(t.Context(), "1"); o.State != Cancelled || !strings.Contains(o.Reason, "asked") {
			t.Errorf("%+v", o)
		}
		time.Sleep(time.Minute)
		if h, f := hotel.state("1"), flight.state("1"); h != "cancelled" || f == "held" {
			t.Errorf("%s, %s", h, f)
		}
		hotel.rules(t)
		flight.rules(t)
		r.Close(t.Context())
	})
}

// TestAnotherBranchDecidesNothing: a participant of a branch that a submitted transaction does not
// have is to cancel, and the transaction continues.
func TestAnotherBranchDecidesNothing(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
		hotel.bad = slowTry(time.Second)
		r := serve(t, nil, 1, nil, hotel)
		done := make(chan error, 1)
		go func() {
			_, err := r.submit(context.Background(), "1", hotel)
			done <- err
		}()
		synctest.Wait()
		if d, err := r.Decide(t.Context(), "1", "flight"); d != Cancel || err != nil {
			t.Errorf("%q, %v", d, err)
		}
		ok(t, <-done)
		r.Close(t.Context())
	})
}

// TestCloseDecides: transactions that are running when the time to close is over are
// cancelled, durably before Close returns.
func TestCloseDecides(t *testing.T) {
	atHotel(t, 2, func(t *testing.T, hotel *venue) {
		hotel.bad = slowTry(time.Second)
		r := serve(t, nil, 1, nil, hotel)
		outcomes := make(chan Outcome, 1)
		submit := func(id string) {
			go func() {
				o, _ := r.submit(context.Background(), id, hotel)
				outcomes <- o
			}()
			synctest.Wait()
		}
		submit("1")
		time.Sleep(time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		r.Close(ctx)
		if o := <-outcomes; o.Decision != Cancel {
			t.Errorf("%+v", o)
		}
		next := idle(t, r.store, nil, nil, hotel)
		go func() {
			o, _ := next.submit(context.Background(), "2", hotel)
			outcomes <- o
		}()
		synctest.Wait()
		next.Close(t.Context())
		if o := <-outcomes; o.Decision != Confirm {
			t.Errorf("%+v", o)
		}
	})
}

// TestOpenedRecords: the records that may follow an open record.
func TestOpenedRecords(t *testing.T) {
	open := record(recordOpen, "", opening{Until: 1})
	tried := func(step string) journal.Entry {
		return record(recordTried, step, trying{Resource: "r", Request: json.RawMessage(`1`)})
	}
	held := record(recordHeld, "a", holding{Hold: json.RawMessage(`2`)})
	none := record(recordHeld, "a", holding{Refused: true})
	confirm, cancel := record(recordDecide, "confirm", deciding{}), record(recordDecide, "cancel", deciding{})
	for want, histories := range map[State][][]journal.Entry{
		Trying:     {{open}, {open, tried("a")}, {open, tried("a"), held}},
		Confirming: {{open, tried("a"), held, confirm}},
		Cancelling: {{open, tried("a"), cancel}, {open, tried("a"), held, cancel}, {open, tried("a"), none, cancel}},
	} {
		for i, h := range histories {
			if m, err := replay(h); err != nil || m.state() != want {
				t.Errorf("%s %d: %v, %v", want, i, m.state(), err)
			}
		}
	}
	for i, h := range [][]journal.Entry{
		{open, open}, {tried("a"), open}, {held}, {tried("a"), held}, {open, held}, {open, tried("a"), held, held}, {open, tried("a"), none, none},
		{open, confirm}, {open, tried("a"), confirm}, {open, tried("a"), none, confirm}, {open, tried("a"), tried("b"), held, confirm},
		{open, tried("a"), cancel, held}, {cancel, open}, {open, tried("a"), {Kind: recordUndone, Step: "a"}}, {open, {Kind: recordEnd}},
		{open, record(recordRetry, "", By{})}, {{Kind: recordOpen, Data: []byte("{")}}, {open, tried("a"), {Kind: recordHeld, Step: "a", Data: []byte("{")}},
	} {
		if m, err := replay(h); err == nil {
			t.Errorf("%d: it is %v", i, m.state())
		}
	}
}

// TestRunMeetsASubmit: a Run that meets a submitted transaction of its id only when it decides returns the decision
// of that, not an undecided transaction.
func TestRunMeetsASubmit(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
		var tries atomic.Int64
		hotel.bad = func(c branch.Call) (before, after error) {
			switch {
			case c.Operation != branch.Try:
			case tries.Add(1) == 1: // that of the Run
				time.Sleep(time.Second)
			default:
				time.Sleep(3 * time.Second)
				return errNetwork, nil
			}
			return nil, nil
		}
		store := txntest.NewJournal()
		one, two := serve(t, store, 1, nil, hotel), idle(t, store, nil, nil, hotel)
		var work sync.WaitGroup
		work.Go(func() {
			time.Sleep(100 * time.Millisecond)
			_, err := two.submit(context.Background(), "1", hotel)
			wantKind(t, err, interlock.Definite, ErrCancelled)
		})
		o, err := one.run(t.Context(), "1", hotel)
		if wantKind(t, err, interlock.Definite, ErrCancelled); o.Decision != Cancel {
			t.Errorf("%+v", o)
		}
		work.Wait()
		_, _ = one.Wait(t.Context(), "1")
		if state := hotel.state("1"); state != "cancelled" {
			t.Error(state)
		}
		two.Close(t.Context())
	})
}
