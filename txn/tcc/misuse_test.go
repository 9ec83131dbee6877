package tcc

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestEngines: all faults are reported when the engine is created.
func TestEngines(t *testing.T) {
	wantKind(t, txntest.Second(New(nil, nil)), interlock.Bug, nil)
	j, err := journal.New(memory.NewJournal(), nil)
	ok(t, err)
	defer j.Close()
	v := newVenue("hotel", 1)
	for name, c := range map[string]struct {
		o         *Options
		resources []Defined
		want      string // empty if nothing is wrong
	}{
		"right":      {nil, []Defined{v.define()}, ""},
		"nothing":    {nil, nil, ""},
		"nil":        {nil, []Defined{Define[string, string]("x", nil)}, "is nil"},
		"nil itself": {nil, []Defined{nil}, "is nil"},
		"no name":    {nil, []Defined{Define("", Resource[string, string](v))}, "1 to 255"},
		"long name":  {nil, []Defined{Define(strings.Repeat("x", 256), Resource[string, string](v))}, "1 to 255"},
		"twice":      {nil, []Defined{v.define(), v.define()}, "each its own"},
		"long hold":  {&Options{Hold: 25 * time.Hour}, nil, "forget a try"},
		"margin":     {&Options{Hold: time.Second, Margin: time.Second}, nil, "nothing could ever be confirmed"},
	} {
		c2, err := coordinator.New(j, nil)
		ok(t, err)
		_, err = New(c2, c.o, c.resources...)
		if c.want == "" && err != nil || c.want != "" && (err == nil || interlock.Kind(err) != interlock.Bug || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
		if _, again := New(c2, nil); c.want == "" && interlock.Kind(again) != interlock.Bug {
			t.Errorf("%s: a coordinator has two engines: %v", name, again)
		}
	}
}

// TestBadInput returns a clear error, and tries nothing.
func TestBadInput(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newVenue("hotel", 100)
		r := serve(t, nil, 1, nil, v)
		try := v.define().Try("seat")
		endless := Define("hotel", Resource[float64, string](nil)).Try(math.Inf(1))
		var many []Branch
		for i := range MaxBranches + 1 {
			many = append(many, try.As(string(rune('A'+i))))
		}
		stranger := newVenue("stranger", 1).define().Try("seat")
		run := func(kind, id string, branches ...Branch) error {
			return txntest.Second(r.Run(t.Context(), kind, id, branches...))
		}
		for name, err := range map[string]error{
			"no id": run("booking", "", try), "long id": run("booking", strings.Repeat("x", driver.MaxTransaction+1), try),
			"NUL": run("booking", "a\x00b", try), "no UTF-8": run("booking", "\xff", try),
			"no type": run("", "1", try), "long type": run(strings.Repeat("x", 251), "1", try),
			"no branch": run("booking", "1"), "nil": run("booking", "1", nil), "many": run("booking", "1", many...),
			"twice": run("booking", "1", try, try), "no name": run("booking", "1", try.As("")), "long name": run("booking", "1", try.As(strings.Repeat("x", 256))),
			"stranger": run("booking", "1", stranger), "no JSON": run("booking", "1", endless),
			"large": run("booking", "1", v.define().Try(strings.Repeat("x", driver.MaxPayload))),
		} {
			if wantKind(t, err, interlock.Bug, nil); t.Failed() {
				t.Fatal(name)
			}
			if why := map[string]string{"no JSON": "json: unsupported value", "large": "bytes, at most"}[name]; !strings.Contains(err.Error(), why) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if len(v.post.keys) != 0 || r.store.Appends() != 0 {
			t.Errorf("%v, %d appends", v.post.keys, r.store.Appends())
		}
		_, err := r.Look(t.Context(), "1")
		wantKind(t, err, interlock.Definite, ErrNone)
		_, err = try.OutputOf(Outcome{})
		wantKind(t, err, interlock.Uncertain, ErrNoOutput)
		ok(t, run("booking", "1", many[:MaxBranches]...))
		o, err := r.Wait(t.Context(), "1")
		if o.State != Confirmed || err != nil {
			t.Errorf("%d branches: %+v, %v", MaxBranches, o, err)
		}
	})
}

// TestLargeHolds: a hold of the maximum size is kept beside the records; a larger one is
// unknown, and cancelled.
func TestLargeHolds(t *testing.T) {
	for size, want := range map[int]Decision{driver.MaxPayload/2 - 2000: Confirm, driver.MaxPayload: Cancel} {
		bubble(t, func(t *testing.T) {
			r, d := serveOne(t, nil, Resource[string, string](wide(size)))
			o, err := r.Run(t.Context(), "booking", "1", d.Try(strings.Repeat("q", driver.MaxPayload/2-3000)))
			if o.Decision != want {
				t.Errorf("%d bytes: %s, %v", size, o.Decision, err)
			}
			if o, _ := r.Wait(t.Context(), "1"); o.State != map[Decision]State{Confirm: Confirmed, Cancel: Cancelled}[want] {
				t.Errorf("%+v", o)
			}
		})
	}
}

// wide holds this number of bytes.
type wide int

func (w wide) Try(context.Context, string, time.Time) (string, error) {
	return strings.Repeat("h", int(w)), nil
}

func (w wide) Confirm(_ context.Context, _ string, h string) error {
	if len(h) != int(w) {
		return branch.Fail(errFull)
	}
	return nil
}
func (w wide) Cancel(context.Context, string, *string) error { return nil }

// nested is a resource whose holds are lists in lists.
type nested struct{}

func (nested) Try(context.Context, string, time.Time) (json.RawMessage, error) {
	const depth = 10_000 // of what encoding/json reads
	return json.RawMessage(strings.Repeat("[", depth) + strings.Repeat("]", depth)), nil
}
func (nested) Confirm(context.Context, string, json.RawMessage) error { return nil }
func (nested) Cancel(context.Context, string, *json.RawMessage) error { return nil }

// TestNestedHold: a hold that no record can have cancels its transaction.
func TestNestedHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, d := serveOne(t, nil, Resource[string, json.RawMessage](nested{}))
		_, err := r.Run(t.Context(), "booking", "1", d.Try("x"))
		wantKind(t, err, interlock.Definite, ErrCancelled)
		_, err = r.Submit(t.Context(), "booking", "2", d.Try("x"))
		wantKind(t, err, interlock.Definite, ErrCancelled)
		r.Close(t.Context())
	})
}

// TestNullHold: a hold that is null in JSON counts, and no request is lost.
func TestNullHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, d := serveOne(t, nil, Resource[*int, *int](null{}))
		o, err := r.Run(t.Context(), "booking", "1", d.Try(nil))
		ok(t, err)
		if o, err = r.Wait(t.Context(), "1"); o.State != Confirmed || err != nil {
			t.Errorf("%+v, %v", o, err)
		}
	})
}

type null struct{}

func (null) Try(context.Context, *int, time.Time) (*int, error) { return nil, nil }
func (null) Confirm(context.Context, *int, *int) error          { return nil }
func (null) Cancel(context.Context, *int, **int) error          { return nil }
