package tcctest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/tcc/tcctest"
)

// A trip is booked by its hotel and its airline.
type trip struct {
	hotel   tcc.Definition[string, int]
	airline tcc.Definition[string, int]
}

// book is a function of the program: it returns the decision to its caller.
func (t trip) book(ctx context.Context, m *tcc.Engine, id, guest string) error {
	_, err := m.Run(ctx, "trip", id, t.hotel.Try(guest), t.airline.Try(guest))
	return err
}

// places is a fake of a resource that is held and sold: rooms, or seats.
type places struct {
	world *tcctest.World
	kind  string
}

func (p places) Try(ctx context.Context, guest string, until time.Time) (int, error) {
	return tcctest.Hold(ctx, p.world, until, func(v tcctest.Values) (int, error) {
		left := v.Add("free "+p.kind, -1)
		if left < 0 {
			return 0, branch.Fail(errors.New("all are taken"))
		}
		v.Add("held "+p.kind, 1)
		return left, nil
	})
}

func (p places) Confirm(ctx context.Context, guest string, number int) error {
	return p.world.Confirm(ctx, func(v tcctest.Values) error {
		v.Add("held "+p.kind, -1)
		v[fmt.Sprintf("%s %d", p.kind, number)] = guest
		return nil
	})
}

// Cancel does not use the number: it is nil if the answer of the try was lost.
func (p places) Cancel(ctx context.Context, guest string, _ *int) error {
	return p.world.Cancel(ctx, func(v tcctest.Values) error {
		v.Add("held "+p.kind, -1)
		v.Add("free "+p.kind, 1)
		return nil
	})
}

// tripScene returns a trip in a new world.
func tripScene() tcctest.Scene {
	w := &tcctest.World{}
	w.Set("free rooms", "1")
	w.Set("free seats", "1")
	rooms, seats := places{w, "rooms"}, places{w, "seats"}
	s := tcctest.Scene{Snapshot: w.Snapshot}
	t := trip{tcctest.Define(&s, "hotel", rooms), tcctest.Define(&s, "airline", seats)}
	s.Run = func(ctx context.Context, m *tcc.Engine, id string) error { return t.book(ctx, m, id, "ada") }
	s.Sweep = func(ctx context.Context, ask tcc.Ask) error {
		return w.Sweep(ctx, ask, func(ctx context.Context) error {
			if branch.From(ctx).Branch == "hotel" {
				return rooms.Cancel(ctx, "", nil)
			}
			return seats.Cancel(ctx, "", nil)
		})
	}
	return s
}

func TestTrip(t *testing.T) {
	tcctest.Explore(t, tripScene)
}

func ExampleExplore() {
	var t *testing.T // the argument of a test function

	tcctest.Explore(t, tripScene) // a scene is made for each run: it returns a new world and a transaction on it
}

func ExampleHold() {
	w := &tcctest.World{}
	call := branch.Call{Transaction: "trip/1", Branch: "hotel", Operation: branch.Try, Attempt: 1}
	hold := func() {
		n, err := tcctest.Hold(branch.With(context.Background(), call), w, time.Now().Add(time.Minute), func(v tcctest.Values) (int, error) {
			return v.Add("held", 1), nil
		})
		fmt.Println(n, err)
	}
	hold()
	hold() // has the first answer
	call.Transaction, call.Operation = "trip/2", branch.Cancel
	_ = w.Cancel(branch.With(context.Background(), call), func(v tcctest.Values) error { v.Add("held", -1); return nil })
	call.Operation = branch.Try
	hold() // arrives after its cancellation
	fmt.Print(w.Snapshot())
	// Output:
	// 1 <nil>
	// 1 <nil>
	// 0 it was cancelled before
	// held: 1
}
