package choreography

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// order is a saga with a step that never fails, one that may, and a pivot.
var order = &Definition{Name: "order", Topic: "orders", Cancelled: "C", Steps: []Step{
	{Done: "a", Undone: "-a"},
	{Done: "b", Undone: "-b", Failed: "!b"},
	{Done: "p", Undone: "-p", Failed: "!p", Pivot: true},
}}

// noted returns the facts of events in an order. A name with a star has another
// payload, and one with < a cause.
func noted(d *Definition, names ...string) *facts {
	f := &facts{}
	for _, name := range names {
		event, other := strings.CutSuffix(name, "*")
		event, cause, caused := strings.Cut(event, "<")
		e := Event{Saga: "1", Name: event}
		if caused {
			e.Cause = order.ID(Event{Saga: "1", Name: cause})
		}
		if other {
			e.Payload = []byte("other")
		}
		f.note(d, e)
	}
	return f
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		events string
		state  State
		reason string
	}{
		{"a", Running, ""},
		{"b p", Running, ""},
		{"a b p", Completed, ""},
		{"a !b", Compensating, ""},
		{"-a", Compensating, ""},
		{"C", Compensating, ""},
		{"C* C", Compensating, ""},
		{"a b !p -b", Compensating, ""},
		{"a !b -a", Compensating, ""},
		{"a !b -a -p", Compensated, ""},
		{"a b !p -a -b", Compensated, ""},
		{"C -a -b -p", Compensated, ""},
		{"-a -b -p", Compensated, ""},
		{"a b C -a -b -p", Compensated, ""},
		{"a a* !b -a -p", Compensated, ""},
		{"a x C -a -b -p", Compensated, ""},
		{"a b p C", Contradictory, `"p" happened and cannot be undone`},
		{"p !b -a -b -p", Contradictory, `"p" happened and cannot be undone`},
		{"p -p", Contradictory, `"p" happened and cannot be undone`},
		{"b !b", Contradictory, `"b" and "!b" both happened`},
		{"b !b -a -p", Contradictory, `"b" and "!b" both happened`},
		{"b !b -a -b -p", Compensated, ""},
		{"a b p a*", Contradictory, `"a" has different payloads`},
		{"b p<a", Completed, ""},
		{"a b<x", Running, ""},
		{"-a<!b -p", Compensated, ""},
		{"a y x", Contradictory, `no event "x"`},
	} {
		state, reason := noted(order, strings.Fields(c.events)...).judge(order)
		if state != c.state || !strings.Contains(reason, c.reason) || (reason == "") != (c.reason == "") {
			t.Errorf("%s: %s, %q; want %s, %q", c.events, state, reason, c.state, c.reason)
		}
	}
}

// TestEveryOrder: the facts of each set of up to five events are the same in every order, with
// any event repeated at any place.
func TestEveryOrder(t *testing.T) {
	pool := []string{"a", "-a", "b", "!b", "p", "C<b", "a*", "x", "y<a"}
	orders := 0
	for set := range 1 << len(pool) {
		var names []string
		for i, name := range pool {
			if set&(1<<i) != 0 {
				names = append(names, name)
			}
		}
		if len(names) > 5 {
			continue
		}
		want := noted(order, names...)
		permute(names, func(p []string) {
			orders++
			for i := range p {
				again := slices.Insert(slices.Clone(p), len(p)-i, p[i])
				if got := noted(order, again...); !reflect.DeepEqual(got, want) {
					t.Fatalf("%v: %+v, and in another order %+v", again, got, want)
				}
			}
		})
	}
	if orders < 15000 {
		t.Errorf("only %d orders", orders)
	}
}

// permute calls fn for every order of names.
func permute(names []string, fn func([]string), chosen ...string) {
	if len(names) == 0 {
		fn(chosen)
	}
	for i := range names {
		permute(slices.Delete(slices.Clone(names), i, i+1), fn, append(slices.Clone(chosen), names[i])...)
	}
}

// TestLateEventsChangeNothing: over all sets of events, one more event never makes an undone saga
// run or complete. It changes a compensated one only to a contradiction: if its pivot, or a step
// that failed, was done nonetheless.
func TestLateEventsChangeNothing(t *testing.T) {
	all := order.events()
	seen := map[State]int{}
	for set := range 1 << len(all) {
		f := noted(order)
		for i, name := range all {
			if set&(1<<i) != 0 {
				f.note(order, Event{Name: name})
			}
		}
		before, _ := f.judge(order)
		seen[before]++
		for _, late := range append(all, "a*", "x") {
			g := &facts{Sums: maps.Clone(f.Sums)}
			event, _ := strings.CutSuffix(late, "*")
			g.note(order, Event{Name: event, Payload: []byte(late[len(event):])})
			after, _ := g.judge(order)
			undone := before == Compensating || before == Compensated || before == Contradictory
			if undone && (after == Running || after == Completed) {
				t.Errorf("%v is %s, and with %s it is %s", f.Sums, before, late, after)
			}
			contradicts := late == "p" || late == "b" && f.has("!b") && !f.has("-b")
			if before == Compensated && after != Compensated && !contradicts {
				t.Errorf("%v is %s, and with %s it is %s", f.Sums, before, late, after)
			}
			if before == Completed && after == Running {
				t.Errorf("%v is %s, and with %s it is %s", f.Sums, before, late, after)
			}
		}
	}
	for _, s := range []State{Running, Completed, Compensating, Compensated, Contradictory} {
		if seen[s] == 0 {
			t.Errorf("no set of events is %s", s)
		}
	}
}

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		events   string
		attempts int
		policy   Policy
		want     Action
		emitted  string
	}{
		{"a b", 0, Policy{}, Repeated, "a b"},
		{"a b", 2, Policy{}, Repeated, "a b"},
		{"a b", 3, Policy{}, Reported, ""},
		{"a b", 0, Policy{Repeats: -1}, Reported, ""},
		{"a b", 0, Policy{Repeats: -1, Cancel: true}, Cancelled, "C"},
		{"a b", 1, Policy{Repeats: -1, Cancel: true}, Reported, ""},
		{"a b", 1, Policy{Repeats: 2, Cancel: true}, Repeated, "a b"},
		{"a b", 2, Policy{Repeats: 2, Cancel: true}, Cancelled, "C"},
		{"a b", 3, Policy{Repeats: 2, Cancel: true}, Cancelled, "C"},
		{"a b", 4, Policy{Repeats: 2, Cancel: true}, Reported, ""},
		{"a p", 3, Policy{Cancel: true}, Reported, ""},
		{"a !b", 0, Policy{}, Repeated, "!b"},
		{"a !b C", 2, Policy{}, Repeated, "C !b"},
		{"a !b", 3, Policy{Cancel: true}, Reported, ""},
		{"-a", 0, Policy{}, Cancelled, "C"},
		{"-a<!b", 0, Policy{}, Cancelled, "C"},
		{"b<a", 0, Policy{}, Repeated, "b"},
		{"b !b", 0, Policy{}, Reported, ""},
		{"b !b", 0, Policy{Cancel: true}, Repeated, "!b"},
		{"b !b", 3, Policy{Cancel: true}, Reported, ""},
		{"a a*", 0, Policy{Cancel: true}, Cancelled, "C"},
		{"x", 0, Policy{Cancel: true}, Cancelled, "C"},
		{"p C", 0, Policy{Cancel: true}, Reported, ""},
	} {
		f := noted(order, strings.Fields(c.events)...)
		state, _ := f.judge(order)
		got := decide(order, f, state, c.attempts, c.policy)
		if names := strings.Join(f.emitted(order, state, got), " "); got != c.want || got != Reported && names != c.emitted {
			t.Errorf("%s after %d of %+v: %s %s, want %s %s", c.events, c.attempts, c.policy, got, names, c.want, c.emitted)
		}
	}
}

func TestMessages(t *testing.T) {
	read := func(m driver.Message) (Event, bool) {
		return order.Read(driver.QueueMessage{Headers: m.Headers, Payload: m.Payload})
	}
	e := Event{Saga: "4/2", Name: "a", Cause: "order/4/2/C", Begun: time.UnixMilli(1700000000123), Payload: []byte("x"), Headers: map[string]string{"traceparent": "00"}}
	m := order.Message(e)
	got, ok := read(m)
	if !ok || !reflect.DeepEqual(got, e) || m.ID != "" || m.Topic != "orders" || m.Key != "4/2" || len(e.Headers) != 1 || order.ID(e) != "order/4/2/a" {
		t.Errorf("%+v from %+v", got, m)
	}
	for header, value := range map[string]string{HeaderSaga: "other/42", HeaderEvent: "", HeaderBegun: "0"} {
		m := order.Message(e)
		m.Headers[header] = value
		if got, ok := read(m); ok {
			t.Errorf("%s %q: %+v", header, value, got)
		}
	}
	for _, cause := range []string{"a\x00b", "\xff", strings.Repeat("x", 256)} { // the tracker cannot store it
		m, want := order.Message(e), e
		m.Headers[HeaderCause], want.Cause = cause, ""
		if got, ok := read(m); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("cause %.9q: %+v", cause, got)
		}
	}
	long := e
	for _, saga := range []string{"", strings.Repeat("x", MaxSaga+1), "a\x00b"} {
		if long.Saga = saga; true {
			if got, ok := read(order.Message(long)); ok {
				t.Errorf("%+v", got)
			}
		}
	}
	if m := order.Message(Event{Saga: "1", Name: "a"}); m.Headers[HeaderBegun] == "" {
		t.Error("no begin")
	}
}

func TestValidate(t *testing.T) {
	if err := order.Validate(); err != nil {
		t.Fatal(err)
	}
	for i, change := range []func(d *Definition){
		func(d *Definition) { d.Name = "" }, func(d *Definition) { d.Name = "a/b" }, func(d *Definition) { d.Topic = "" },
		func(d *Definition) { d.Cancelled = "" }, func(d *Definition) { d.Cancelled = "a" }, func(d *Definition) { d.Stalled = -1 },
		func(d *Definition) { d.Steps = nil }, func(d *Definition) { d.Steps[0].Undone = "" }, func(d *Definition) { d.Steps[0].Done = "!b" },
		func(d *Definition) { d.Steps[0].Done = strings.Repeat("x", MaxEvent+1) },
	} {
		d := *order
		d.Steps = slices.Clone(order.Steps)
		if change(&d); interlock.Kind(d.Validate()) != interlock.Bug {
			t.Errorf("%d: %v", i, d.Validate())
		}
	}
	if interlock.Kind((*Definition)(nil).Validate()) != interlock.Bug {
		t.Error("no definition is one")
	}
	if s := fmt.Sprint(Event{Saga: "1", Name: "a"}); s != `"a" of saga "1"` {
		t.Error(s)
	}
}
