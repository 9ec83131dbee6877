package pictures

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/picture"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/saga"
)

// The lanes of the saga.
const (
	coordinator = iota
	store
	stock
	bank
	post
)

// call records a step or an undo, which takes a tenth of a second.
func (f *film) call(lane int, name string, failure error) (string, error) {
	f.add(picture.Cell{Lane: coordinator, Text: "call " + name, To: lane})
	time.Sleep(100 * time.Millisecond)
	if failure != nil {
		f.add(picture.Cell{Lane: lane, To: coordinator, Text: name + " refused: " + failure.Error(), Tone: picture.Bad})
		return "", saga.Fail(failure)
	}
	f.add(picture.Cell{Lane: lane, To: coordinator, Text: name + " done", Tone: picture.Good})
	return "", nil
}

// TestSaga draws a saga whose pivot is refused: its steps are undone in reverse order.
func TestSaga(t *testing.T) {
	f := &film{}
	virtual.Test(t, func(t *testing.T) {
		step := func(lane int, name string, failure error) func(context.Context, string) (string, error) {
			return func(context.Context, string) (string, error) { return f.call(lane, name, failure) }
		}
		undo := func(lane int, name string) func(context.Context, string, *string) error {
			return func(context.Context, string, *string) error { _, err := f.call(lane, name, nil); return err }
		}
		order := saga.Define("order",
			saga.Step("reserve", step(stock, "reserve", nil)).Undo("release", undo(stock, "release")),
			saga.Step("charge", step(bank, "charge", nil)).Undo("refund", undo(bank, "refund")),
			saga.Step("ship", step(post, "ship", errors.New("too heavy"))).Pivot())
		journal := recorder{Journal: memory.NewJournal(), film: f, lane: coordinator, store: store}
		rt, err := txn.New(t.Context(), journal, memory.NewSpace().Open(nil), nil, &txn.Options{Shards: 1})
		testbed.OK(t, err)
		defer rt.Close(t.Context())
		engine, err := saga.New(rt.Coordinator(), nil, order)
		if err == nil {
			err = rt.Start(t.Context())
		}
		testbed.OK(t, err)
		synctest.Wait()
		f.began = time.Now()
		outcome, err := order.Do(t.Context(), engine, "order/2", "piano")
		if outcome.State != saga.Compensated {
			t.Errorf("it ended as %v, %v", outcome.State, err)
		}
		f.add(picture.Cell{Lane: coordinator, To: coordinator, Text: "answer: " + string(outcome.State)})
	})
	compare(t, "saga", picture.Sequence{Title: "A saga whose pivot is refused",
		Lanes: []string{"coordinator", "journal", "stock", "bank", "post (pivot)"}, Rows: f.rows}.SVG())
}
