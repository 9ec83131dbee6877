package countermeasure_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/countermeasure"
)

// attempts is a database that counts begun, open and committed transactions.
type attempts struct{ begun, open, committed int }

func (a *attempts) Begin(context.Context) (driver.Tx[driver.SQL], error) {
	a.begun++
	a.open++
	return &attempt{all: a}, nil
}

type attempt struct {
	driver.Tx[driver.SQL]
	all *attempts
}

func (t *attempt) Native() driver.SQL             { return nil }
func (t *attempt) Classify(err error) error       { return err }
func (t *attempt) Commit(context.Context) error   { t.all.open--; t.all.committed++; return nil }
func (t *attempt) Rollback(context.Context) error { t.all.open--; return nil }

func held(context.Context, driver.SQL) error {
	return &countermeasure.HeldError{Flag: countermeasure.Flag{Resource: "r", Owner: "other"}}
}

// TestWaitIsBounded: Wait gives up in time, returns the owner of the flag, and has no open
// transaction during pauses.
func TestWaitIsBounded(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var db attempts
		begun := time.Now()
		err := countermeasure.Wait(t.Context(), &db, nil, func(ctx context.Context, tx driver.SQL) error {
			if db.open != 1 {
				t.Errorf("%d open", db.open)
			}
			return held(ctx, tx)
		})
		wantHeld(t, err, "other")
		if took := time.Since(begun); took != 5*time.Second || db.begun < 10 || db.begun > 200 || db.open != 0 || db.committed != 0 {
			t.Errorf("%v, %+v", took, db)
		}
	})
}

// TestWaitGoesOn: Wait continues once the flag is free, after growing pauses.
func TestWaitGoesOn(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var db attempts
		var at []time.Duration
		begun := time.Now()
		p := countermeasure.Patience{For: time.Minute, First: 100 * time.Millisecond, Max: 300 * time.Millisecond, Random: func() float64 { return 0.999 }}
		err := countermeasure.Wait(t.Context(), &db, &p, func(ctx context.Context, tx driver.SQL) error {
			if at = append(at, time.Since(begun).Round(10*time.Millisecond)); len(at) < 5 {
				return held(ctx, tx)
			}
			return nil
		})
		want := []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond, 900 * time.Millisecond}
		if err != nil || db.committed != 1 || db.open != 0 || len(at) != len(want) {
			t.Fatalf("%v, %+v, %v", err, db, at)
		}
		for i := range want {
			if at[i] != want[i] {
				t.Errorf("attempts at %v", at)
			}
		}
	})
}

// TestWaitRepeatsNothingElse: Wait repeats after no other error, and not after its context has
// ended.
func TestWaitRepeatsNothingElse(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		mine, gone := errors.New("mine"), errors.New("the caller has gone")
		for _, want := range []error{mine, &interlock.Error{Op: "x", Kind: interlock.Retryable, Err: mine}, &interlock.HeldError{Name: "a lock"}} {
			var db attempts
			err := countermeasure.Wait(t.Context(), &db, nil, func(context.Context, driver.SQL) error { return want })
			if !errors.Is(err, want) || db.begun != 1 || db.open != 0 {
				t.Errorf("%v, %+v", err, db)
			}
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(gone) })
		var db attempts
		begun := time.Now()
		err := countermeasure.Wait(ctx, &db, &countermeasure.Patience{For: time.Hour, First: time.Minute, Max: time.Minute}, held)
		if !errors.Is(err, gone) || !errors.Is(err, interlock.ErrHeld) || time.Since(begun) != time.Second || db.open != 0 {
			t.Errorf("%v after %v, %+v", err, time.Since(begun), db)
		}
		for _, p := range []countermeasure.Patience{{For: -1}, {First: -1}, {Max: -1}} {
			wantKind(t, countermeasure.Wait(t.Context(), &db, &p, held), interlock.Bug, nil)
		}
		wantKind(t, countermeasure.Wait[driver.SQL](t.Context(), nil, nil, held), interlock.Bug, nil)
		wantKind(t, countermeasure.Wait[driver.SQL](t.Context(), &db, nil, nil), interlock.Bug, nil)
	})
}
