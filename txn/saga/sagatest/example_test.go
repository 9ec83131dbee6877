package sagatest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/saga/sagatest"
)

type order struct {
	Guest string
	Total int
}

type seat struct{ Number int }

// booking is the saga; its participants are arguments, here fakes.
func booking(h hotel) saga.Definition[order] {
	hold := saga.Step("hold", h.hold).Undo("release", h.release)
	charge := saga.Step("charge", h.charge).Pivot()
	return saga.Define("booking", hold, charge, saga.Step("mail", h.mail))
}

type hotel struct{ world *sagatest.World }

func (h hotel) hold(ctx context.Context, o order) (seat, error) {
	return sagatest.Effect(ctx, h.world, func(v sagatest.Values) (seat, error) {
		left := v.Add("seats", -1)
		if left < 0 {
			return seat{}, saga.Fail(errors.New("no seat"))
		}
		v["seat of "+o.Guest] = fmt.Sprint(left)
		return seat{left}, nil
	})
}

// release finds the seat by its guest: the output is nil if the answer of hold was lost.
func (h hotel) release(ctx context.Context, o order, _ *seat) error {
	return h.world.Undo(ctx, func(v sagatest.Values) error {
		v.Add("seats", 1)
		v["seat of "+o.Guest] = ""
		return nil
	})
}

func (h hotel) charge(ctx context.Context, o order) (int, error) {
	return sagatest.Effect(ctx, h.world, func(v sagatest.Values) (int, error) {
		return v.Add("paid by "+o.Guest, o.Total), nil
	})
}

func (h hotel) mail(ctx context.Context, o order) (int, error) {
	return sagatest.Effect(ctx, h.world, func(v sagatest.Values) (int, error) {
		return v.Add("mails to "+o.Guest, 1), nil
	})
}

// scene returns the saga in a new world.
func scene() sagatest.Scene[order] {
	w := &sagatest.World{}
	w.Set("seats", "10")
	return sagatest.Scene[order]{
		Saga:     booking(hotel{w}),
		Input:    order{Guest: "ada", Total: 40},
		Snapshot: w.Snapshot,
	}
}

func TestBooking(t *testing.T) {
	sagatest.Explore(t, scene)
}

func ExampleExplore() {
	var t *testing.T // the argument of a test function

	sagatest.Explore(t, scene) // a scene is made for each run: it returns a new world and a saga on it
}

func ExampleEffect() {
	w := &sagatest.World{}
	call := branch.Call{Transaction: "booking/1", Branch: "hold", Operation: branch.Do, Attempt: 1}
	hold := func() {
		left, err := sagatest.Effect(branch.With(context.Background(), call), w, func(v sagatest.Values) (int, error) {
			return v.Add("held", 1), nil
		})
		fmt.Println(left, err)
	}
	hold()
	hold() // has the first answer
	call.Transaction, call.Operation = "booking/2", branch.Undo
	_ = w.Undo(branch.With(context.Background(), call), func(v sagatest.Values) error { v.Add("held", -1); return nil })
	call.Operation = branch.Do
	hold() // arrives after its undo
	fmt.Print(w.Snapshot())
	// Output:
	// 1 <nil>
	// 1 <nil>
	// 0 it was undone before
	// held: 1
}
