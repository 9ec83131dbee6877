package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

var ann = By{Actor: "ann", Reason: "the bank has confirmed by telephone"}

// buried is a saga whose undos of b and c fail until they are fixed, while that of a does
// not.
func buried(g *target, fixed *atomic.Bool) Definition[string] {
	stubborn := func(name string) Action[string, string] {
		return g.act(name).Retry(Policy{Undos: 2}).Undo("un"+name, func(ctx context.Context, input string, _ *string) error {
			if !fixed.Load() {
				return errNetwork
			}
			return g.take(From(ctx).Key() + " of " + input)
		})
	}
	return Define("order", g.undoable("a"), stubborn("b"), stubborn("c"), g.undoable("d", always(Fail(errSeat))...))
}

// TestOperatorRetries: a dead letter is finally undone, each effect once, in order; one undo
// alone leaves it dead; and an edited input is used.
func TestOperatorRetries(t *testing.T) {
	for name, c := range map[string]struct {
		retries []string
		input   json.RawMessage
		end     State
		want    []string
	}{
		"all":                {[]string{""}, nil, Compensated, []string{"1/c/undo of in", "1/b/undo of in"}},
		"one":                {[]string{"b"}, nil, DeadLetter, []string{"1/b/undo of in"}},
		"one after another":  {[]string{"b", "c"}, nil, Compensated, []string{"1/b/undo of in", "1/c/undo of in"}},
		"with another input": {[]string{"c"}, json.RawMessage(`"out"`), DeadLetter, []string{"1/c/undo of out"}},
	} {
		runBubble(t, name, func(t *testing.T) {
			var fixed atomic.Bool
			g := &target{}
			d := buried(g, &fixed)
			r := serve(t, nil, 1, nil, d)
			_, err := d.Do(t.Context(), r.engine, "1", "in")
			wantKind(t, err, interlock.Uncertain, ErrDeadLetter)
			fixed.Store(true)
			o := NewOperator(r.coordinator.Journal())
			for _, step := range c.retries {
				ok(t, retry(o, t.Context(), "1", step, c.input, ann))
				time.Sleep(5 * time.Second)
			}
			same(t, "effects", g.did(), append([]string{"1/a/do", "1/b/do", "1/c/do", "1/a/undo"}, c.want...)...)
			looked, err := r.engine.Look(t.Context(), "1")
			if ok(t, err); looked.State != c.end || looked.Ended.IsZero() != (c.end == DeadLetter) {
				t.Errorf("%+v", looked)
			}
			unscheduled(t, r.store.Journal)
		})
	}
}

// TestOperatorSkipsAndResolves: undos that an operator has handled are marked, and a saga is
// closed once, by name and with a reason.
func TestOperatorSkipsAndResolves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var never atomic.Bool
		g := &target{}
		d := buried(g, &never)
		r := serve(t, nil, 1, nil, d)
		o, ctx := NewOperator(r.coordinator.Journal()), t.Context()
		for _, id := range []string{"1", "2"} {
			_, err := d.Do(ctx, r.engine, id, "in")
			wantKind(t, err, interlock.Uncertain, ErrDeadLetter)
		}
		ok(t, o.Skip(ctx, "1", "b", ann))
		wantKind(t, o.Skip(ctx, "1", "b", ann), interlock.Definite, ErrState)
		looked, err := r.engine.Look(ctx, "1")
		if ok(t, err); looked.State != DeadLetter || len(looked.Dead) != 1 {
			t.Errorf("%+v", looked)
		}
		ok(t, o.Skip(ctx, "1", "c", ann))
		looked, err = r.engine.Look(ctx, "1")
		same(t, "skipped", looked.Skipped, "b", "c")
		if ok(t, err); looked.State != Compensated || looked.Ended.IsZero() {
			t.Errorf("%+v", looked)
		}
		ok(t, o.Resolve(ctx, "2", ann))
		looked, err = r.engine.Wait(ctx, "2")
		wantKind(t, err, interlock.Definite, ErrResolved)
		if looked.State != Resolved || looked.Resolved != ann || len(looked.Dead) != 2 || !strings.Contains(err.Error(), ann.Reason) {
			t.Errorf("%+v, %v", looked, err)
		}
		for _, err := range []error{o.Resolve(ctx, "2", ann), o.Retry(ctx, "2", "", ann), o.Skip(ctx, "2", "b", ann), o.Now(ctx, "2", ann)} {
			wantKind(t, err, interlock.Definite, ErrState)
		}
		time.Sleep(48 * time.Hour / 10)
		if n, err := r.coordinator.Journal().Forget(ctx, time.Now().Add(time.Hour), 10); n != 2 || err != nil {
			t.Errorf("%d forgotten, %v", n, err)
		}
	})
}

// TestOperatorBehindThePivot: a step that must be done and fails is reported. An operator can
// skip it, and the rest is driven, or run it with another input. Before the pivot is done,
// neither is possible.
func TestOperatorBehindThePivot(t *testing.T) {
	for name, c := range map[string]struct {
		help func(o *Operator) error
		want []string
	}{
		"skipped": {func(o *Operator) error { return o.Skip(context.Background(), "1", "y", ann) }, []string{"1/a/do", "1/p/do", "1/z/do"}},
		"with another input": {func(o *Operator) error {
			return o.Edit(context.Background(), "1", "y", json.RawMessage(`"good"`), ann)
		}, []string{"1/a/do", "1/p/do", "1/y/do", "1/z/do"}},
	} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			picky := Step("y", func(ctx context.Context, input string) (string, error) {
				if input != "good" {
					return "", Fail(errSeat)
				}
				return input, g.take(From(ctx).Key())
			}).Retry(Policy{First: time.Second, Max: time.Second})
			d := Define("order", g.undoable("a", InProgress(30*time.Second)), g.act("p").Pivot(), picky, g.act("z"))
			var stuck []observe.SagaStuck
			r := serve(t, nil, 1, &settings{saga: Options{Stuck: 5, Hooks: &observe.Saga{Stuck: func(e observe.SagaStuck) { stuck = append(stuck, e) }}}}, d)
			o := NewOperator(r.coordinator.Journal())
			ok(t, d.Start(t.Context(), r.engine, "1", "in"))
			synctest.Wait()
			wantKind(t, o.Skip(t.Context(), "1", "a", ann), interlock.Definite, ErrState)
			wantKind(t, o.Edit(t.Context(), "1", "a", json.RawMessage(`1`), ann), interlock.Definite, ErrState)
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(stuck) == 0 || stuck[0].Step != "y" || stuck[0].Attempts != 5 {
				t.Errorf("received %v", stuck)
			}
			ok(t, c.help(o))
			outcome, err := r.engine.Wait(t.Context(), "1")
			if ok(t, err); outcome.State != Succeeded || (len(outcome.Skipped) == 1) != (name == "skipped") {
				t.Errorf("%+v", outcome)
			}
			same(t, "effects", g.did(), c.want...)
		})
	}
}

// TestNow: an operator ends a wait of days, a long backoff and a target's long delay, which
// do not end earlier.
func TestNow(t *testing.T) {
	day := Policy{First: 24 * time.Hour, Max: 24 * time.Hour}
	crowd := func(g *target) []Stage[string] { // more than one append can have
		var steps []Stage[string]
		for i := range driver.MaxRecords + 8 {
			steps = append(steps, g.undoable(fmt.Sprint("a", i), Retry(errNetwork)).Retry(day))
		}
		return []Stage[string]{Parallel(steps...)}
	}
	for name, stages := range map[string]func(g *target) []Stage[string]{
		"wait": func(g *target) []Stage[string] {
			return []Stage[string]{Sleep[string]("w", 72*time.Hour), g.undoable("a")}
		},
		"backoff": func(g *target) []Stage[string] {
			return []Stage[string]{g.undoable("a", Retry(errNetwork)).Retry(day)}
		},
		"retried": func(g *target) []Stage[string] { return []Stage[string]{g.undoable("a", Retry(errNetwork)).Retry(day)} },
		"ongoing": func(g *target) []Stage[string] { return []Stage[string]{g.undoable("a", InProgress(72*time.Hour))} },
		"short":   func(g *target) []Stage[string] { return []Stage[string]{g.undoable("a", InProgress(50*time.Second))} },
		"group":   crowd,
		"retries": crowd,
	} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			d := Define("order", stages(g)...)
			r := serveBegun(t, nil, d, "1", "in")
			time.Sleep(10 * time.Second)
			same(t, "effects", g.did())
			from := time.Now()
			o := NewOperator(r.coordinator.Journal())
			if strings.HasPrefix(name, "retr") {
				ok(t, o.Retry(t.Context(), "1", "", ann))
			} else {
				ok(t, o.Now(t.Context(), "1", ann))
			}
			_, err := r.engine.Wait(t.Context(), "1")
			if ok(t, err); time.Since(from) > 2*time.Second {
				t.Errorf("it took %v", time.Since(from))
			}
			wantKind(t, o.Now(t.Context(), "1", ann), interlock.Definite, ErrState)
		})
	}
}

// TestOperatorHelpsAnUndo: an undo that waits for a long time is retried at once, or skipped.
func TestOperatorHelpsAnUndo(t *testing.T) {
	for name, c := range map[string]struct {
		help  func(o *Operator) error
		undos int
		end   string
	}{
		"at once":     {func(o *Operator) error { return o.Now(context.Background(), "1", ann) }, 2, "COMPENSATED []"},
		"retried":     {func(o *Operator) error { return o.Retry(context.Background(), "1", "a", ann) }, 2, "COMPENSATED []"},
		"all retried": {func(o *Operator) error { return o.Retry(context.Background(), "1", "", ann) }, 2, "COMPENSATED []"},
		"not retried": {func(o *Operator) error { return o.Retry(context.Background(), "1", "b", ann) }, 1, "UNDOING []"},
		"skipped":     {func(o *Operator) error { return o.Skip(context.Background(), "1", "a", ann) }, 1, "COMPENSATED [a]"},
	} {
		runBubble(t, name, func(t *testing.T) {
			g, undos := &target{}, 0
			a := g.act("a").Undo("una", func(context.Context, string, *string) error {
				if undos++; undos == 1 {
					return InProgress(72 * time.Hour)
				}
				return nil
			})
			d := Define("order", a, g.undoable("b", always(Fail(errSeat))...))
			r := serveBegun(t, nil, d, "1", "in")
			time.Sleep(time.Hour)
			if err := c.help(NewOperator(r.coordinator.Journal())); (err != nil) != (name == "not retried") {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			o, err := r.engine.Look(t.Context(), "1")
			if got := fmt.Sprint(o.State, " ", o.Skipped); err != nil || got != c.end || undos != c.undos {
				t.Errorf("%s after %d undos, %v", got, undos, err)
			}
		})
	}
}

// TestNowInALargeGroup: Now ends all waits of a group that has more steps than an append has records, and
// leaves the undo alone that was given up.
func TestNowInALargeGroup(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const waiting = driver.MaxRecords + 8
		undone := map[string]int{}
		var mu sync.Mutex
		var steps []Stage[string]
		for i := range waiting + 1 {
			name := fmt.Sprint("a", i)
			steps = append(steps, (&target{}).act(name).Undo("un"+name, func(context.Context, string, *string) error {
				mu.Lock()
				defer mu.Unlock()
				switch undone[name]++; {
				case i == 0:
					return Fail(errSeat)
				case undone[name] == 1:
					return InProgress(72 * time.Hour)
				}
				return nil
			}))
		}
		early := (&target{}).undoable("early") // its undo is not next
		r := serveBegun(t, nil, Define("order", early, Parallel(steps...), (&target{}).undoable("z", Fail(errSeat))), "1", "in")
		time.Sleep(time.Hour)
		ok(t, r.engine.Operator().Now(t.Context(), "1", ann))
		time.Sleep(time.Minute)
		o, err := r.engine.Look(t.Context(), "1")
		mu.Lock()
		defer mu.Unlock()
		if ok(t, err); o.State != DeadLetter || len(o.Dead) != 1 || undone["a0"] != 1 {
			t.Errorf("%s, dead %v, undone %v", o.State, o.Dead, undone)
		}
		for i := 1; i <= waiting; i++ {
			if n := undone[fmt.Sprint("a", i)]; n < 2 { // a call whose result is appended between the two appends of Now is repeated
				t.Errorf("a%d: %d undos", i, n)
			}
		}
	})
}

// illegible is a store that cannot be read.
type illegible struct{ *memory.Journal }

func (illegible) Read(context.Context, string, int64) (driver.Head, []driver.Record, error) {
	return driver.Head{}, nil, errNetwork
}

// TestUnreadable: a saga that cannot be read now is not reported as one that does not exist.
func TestUnreadable(t *testing.T) {
	store, d := memory.NewJournal(), Define("order", (&target{}).undoable("a"))
	ok(t, d.Start(t.Context(), engineOver(t, store, d), "1", "in"))
	e := engineOver(t, illegible{store}, d)
	_, err := e.Look(t.Context(), "1")
	for _, err := range []error{err, NewOperator(e.coordinator.Journal()).Now(t.Context(), "1", ann), d.Start(t.Context(), e, "1", "else")} {
		if !errors.Is(err, errNetwork) || errors.Is(err, ErrNone) {
			t.Error(err)
		}
	}
}

// TestOperatorAndOwnerAtOnce: for any append of an operator between any two of the owner,
// the saga ends, and each effect happens once.
func TestOperatorAndOwnerAtOnce(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.undoable("a", InProgress(time.Second)), g.act("p", InProgress(time.Second)).Pivot(), g.act("z", repeat(30, errNetwork)...))
		r := serve(t, nil, 1, nil, d)
		o := NewOperator(r.coordinator.Journal())
		ok(t, d.Start(t.Context(), r.engine, "1", "in"))
		var helped atomic.Int64
		var work sync.WaitGroup
		for range 3 {
			work.Go(func() {
				for range 40 {
					time.Sleep(37 * time.Millisecond)
					if err := o.Now(t.Context(), "1", ann); err == nil {
						helped.Add(1)
					} else if !errors.Is(err, ErrState) && interlock.Kind(err) != interlock.Retryable {
						t.Error(err)
					}
				}
			})
		}
		work.Wait()
		ok(t, txntest.Second(r.engine.Wait(t.Context(), "1")))
		same(t, "effects", g.did(), "1/a/do", "1/p/do", "1/z/do")
		if helped.Load() < 10 {
			t.Errorf("helped %d times", helped.Load())
		}
	})
}

// TestOperatorMisuse returns a clear error, and writes nothing.
func TestOperatorMisuse(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.undoable("a", InProgress(50*time.Second)))
		r := serve(t, nil, 1, nil, d)
		j, ctx := r.coordinator.Journal(), t.Context()
		o := NewOperator(j)
		ok(t, d.Start(ctx, r.engine, "1", "in"))
		synctest.Wait()
		before := len(r.records(t, "1"))
		for by, says := range map[By]string{
			{}: "the actor has 0 bytes", {Actor: "ann"}: "the reason has 0 bytes", {Reason: "why"}: "the actor has 0 bytes", {Actor: strings.Repeat("a", 256), Reason: "why"}: "the actor has 256 bytes",
			{Actor: "ann", Reason: strings.Repeat("a", 1001)}: "the reason has 1001 bytes", {Actor: "ann", Reason: "\xff"}: "not UTF-8", {Actor: "\xff", Reason: "why"}: "not UTF-8",
		} {
			err := o.Resolve(ctx, "1", by)
			if wantKind(t, err, interlock.Bug, nil); !strings.Contains(fmt.Sprint(err), says) {
				t.Errorf("%q does not say %q", err, says)
			}
		}
		wantKind(t, o.Edit(ctx, "1", "a", json.RawMessage(`{`), ann), interlock.Bug, nil)
		wantKind(t, o.Edit(ctx, "1", "a", json.RawMessage(`"`+strings.Repeat("a", driver.MaxPayload)+`"`), ann), interlock.Bug, nil)
		wantKind(t, o.Edit(ctx, "1", "", json.RawMessage(`1`), ann), interlock.Bug, nil)
		wantKind(t, o.Resolve(ctx, "1", ann), interlock.Definite, ErrState)
		wantKind(t, o.Skip(ctx, "1", "nobody", ann), interlock.Definite, ErrState)
		wantKind(t, o.Resolve(ctx, "2", ann), interlock.Definite, ErrNone)
		ok(t, txntest.Second(j.Begin(ctx, "t", "tcc:booking", time.Now().Add(time.Hour), journal.Entry{Kind: "begin"})))
		wantKind(t, o.Resolve(ctx, "t", ann), interlock.Bug, ErrMismatch)
		if n := len(r.records(t, "1")); n != before {
			t.Errorf("%v", r.records(t, "1"))
		}
		var s *StateError
		if err := o.Skip(ctx, "1", "a", ann); !errors.As(err, &s) || s.State != Running || s.Step != "a" || err.Error() != `skip transaction "1", which is RUNNING: step "a": record skip "a" in state "RUNNING": it is invalid in this state` {
			t.Errorf("%v", err)
		}
	})
}

// TestListAndReplay: List finds sagas by type and state, and Replay shows each record by
// record.
func TestListAndReplay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var fixed atomic.Bool
		g := &target{}
		dead, good := buried(g, &fixed), Define("good", g.act("p").Pivot())
		r := serve(t, txntest.NewJournal(), 1, nil, dead, good)
		ctx, j := t.Context(), r.coordinator.Journal()
		_, _ = dead.Do(ctx, r.engine, "1", "in")
		for _, id := range []string{"2", "3"} {
			ok(t, txntest.Second(good.Do(ctx, r.engine, id, "in")))
		}
		ok(t, txntest.Second(j.Begin(ctx, "4", "saga:broken", time.Now().Add(time.Hour), journal.Entry{Kind: recordEnd})))
		ok(t, txntest.Second(j.Begin(ctx, "5", "tcc:booking", time.Now().Add(time.Hour), journal.Entry{Kind: recordBegin})))
		for want, f := range map[string]Filter{
			"1:DEAD_LETTER 2:SUCCEEDED 3:SUCCEEDED 4:error": {}, "2:SUCCEEDED 3:SUCCEEDED": {Type: "good"}, "1:DEAD_LETTER 4:error": {Unfinished: true},
			"1:DEAD_LETTER": {Type: "order", States: []State{DeadLetter}}, "3:SUCCEEDED 4:error": {After: "2"}, "": {Type: "none"},
		} {
			var found []string
			for o, err := range NewOperator(j).List(ctx, f) {
				state := string(o.State)
				if err != nil {
					wantKind(t, err, interlock.Bug, nil)
					state = "error"
				}
				found = append(found, o.ID+":"+state)
			}
			if got := strings.Join(found, " "); got != want {
				t.Errorf("%+v: %s, want %s", f, got, want)
			}
		}
		var listed []string
		ending, end := context.WithCancel(ctx)
		defer end()
		for o, err := range NewOperator(j).List(ending, Filter{}) {
			end()
			listed = append(listed, fmt.Sprint(o.ID, err != nil))
		}
		same(t, "before its context ended", listed, "1false", "true")
		ok(t, NewOperator(j).Skip(ctx, "1", "b", ann))
		_, entries, err := j.Open(ctx, "1")
		ok(t, err)
		moments, err := Replay(entries)
		ok(t, err)
		var states []string
		for i, m := range moments {
			if m.Position != int64(i+1) || m.Written.IsZero() || (m.By == ann) != (m.Kind == "skip") {
				t.Errorf("%+v", m)
			}
			if n := len(states); n == 0 || states[n-1] != string(m.State) {
				states = append(states, string(m.State))
			}
		}
		same(t, "states", states, "RUNNING", "UNDOING", "DEAD_LETTER")
		var fates []string
		for _, p := range moments[len(moments)-1].Steps {
			fates = append(fates, p.Step+":"+p.Status)
		}
		same(t, "steps", fates, "a:undone", "b:skipped", "c:dead", "d:refused")
		damaged := append(entries[:3:3], journal.Entry{Kind: recordEnd})
		moments, err = Replay(damaged)
		if wantKind(t, err, interlock.Bug, nil); len(moments) != 3 || !strings.Contains(err.Error(), "record 4") {
			t.Errorf("%d moments, %v", len(moments), err)
		}
	})
}

// unheard is a store whose first append of a skip is done, and unanswered until another
// process has appended after it.
type unheard struct {
	*memory.Journal
	lost atomic.Bool
}

func (u *unheard) Append(ctx context.Context, appends []driver.Append) []error {
	errs := u.Journal.Append(ctx, appends)
	if appends[0].Records[0].Kind == recordSkip && !u.lost.Swap(true) {
		time.Sleep(5 * time.Second)
		return repeat(len(appends), errNetwork)
	}
	return errs
}

// TestOperatorUnheard: a command that perhaps took effect is not reported as refused.
func TestOperatorUnheard(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.act("p").Pivot(), g.act("z", always(Fail(errSeat))...))
		r := serveBegun(t, nil, d, "1", "in")
		time.Sleep(5 * time.Minute)
		j := open(t, &unheard{Journal: r.store.Journal}, journal.Options{Shards: 1})
		wantKind(t, NewOperator(j).Skip(t.Context(), "1", "z", ann), interlock.Uncertain, nil)
		o, err := r.engine.Wait(t.Context(), "1")
		ok(t, err)
		same(t, "skipped", o.Skipped, "z")
	})
}

// overtaken is a store in which another process always appends first.
type overtaken struct {
	*memory.Journal
	tries int
}

func (o *overtaken) Append(_ context.Context, appends []driver.Append) []error {
	o.tries++
	a := appends[0]
	return []error{&driver.PositionError{Transaction: a.Transaction, After: a.After, Found: driver.Head{Position: a.After + 1}}}
}

// TestOperatorOvertaken: an operator's command gives up after repeated concurrent appends,
// and reports that nothing was done.
func TestOperatorOvertaken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idle(t, txntest.NewJournal(), nil, Define("order", (&target{}).undoable("a")))
		ok(t, r.engine.Start(t.Context(), "order", "1", json.RawMessage(`"in"`)))
		store := &overtaken{Journal: r.store.Journal}
		j := open(t, store, journal.Options{Shards: 1})
		err := NewOperator(j).Now(t.Context(), "1", ann)
		if wantKind(t, err, interlock.Retryable, journal.ErrConflict); store.tries != 10 || !strings.HasPrefix(fmt.Sprint(err), `end the wait of "1": `) {
			t.Errorf("%v after %d tries", err, store.tries)
		}
	})
}

// forgetful is a store that forgets ended sagas after it has listed them.
type forgetful struct{ *memory.Journal }

func (f forgetful) Heads(ctx context.Context, behind string, limit int) ([]driver.Head, error) {
	heads, err := f.Journal.Heads(ctx, behind, limit)
	if err == nil {
		_, err = f.Forget(ctx, time.Now().Add(time.Hour), 1)
	}
	return heads, err
}

// retry is Retry, or Edit if there is an input.
func retry(o *Operator, ctx context.Context, id, step string, input json.RawMessage, by By) error {
	if input == nil {
		return o.Retry(ctx, id, step, by)
	}
	return o.Edit(ctx, id, step, input, by)
}

// TestOperatorAborts: a saga that has not called its pivot is undone, including running
// steps, and records the actor; waiting steps are not called any more.
func TestOperatorAborts(t *testing.T) {
	for name, c := range map[string]struct {
		stages func(g *target) []Stage[string]
		want   []string
	}{
		"nothing has happened": {func(g *target) []Stage[string] {
			return []Stage[string]{Sleep[string]("w", 72*time.Hour), g.undoable("a")}
		}, nil},
		"a step is done": {func(g *target) []Stage[string] {
			return []Stage[string]{g.undoable("a"), Sleep[string]("w", 72*time.Hour), g.undoable("b")}
		}, []string{"1/a/do", "1/a/undo"}},
		"a step is under way": {func(g *target) []Stage[string] {
			return []Stage[string]{g.undoable("a"), g.undoable("b", InProgress(72*time.Hour))}
		}, []string{"1/a/do", "1/b/undo?", "1/a/undo"}},
	} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			d := Define("order", c.stages(g)...)
			r := serveBegun(t, nil, d, "1", "in")
			time.Sleep(10 * time.Second)
			o := NewOperator(r.coordinator.Journal())
			ok(t, o.Abort(t.Context(), "1", ann))
			if name == "nothing has happened" {
				if looked, err := r.engine.Look(t.Context(), "1"); err != nil || looked.State != Compensated {
					t.Errorf("it has not ended by that: %+v, %v", looked, err)
				}
			}
			time.Sleep(10 * time.Second)
			same(t, "effects", g.did(), c.want...)
			looked, err := r.engine.Look(t.Context(), "1")
			if ok(t, err); looked.State != Compensated || looked.Reason != "ann: "+ann.Reason {
				t.Errorf("%+v", looked)
			}
			wantKind(t, o.Abort(t.Context(), "1", ann), interlock.Definite, ErrState)
			unscheduled(t, r.store.Journal)
		})
	}
}

// TestOperatorAbortsTooLate: a saga whose pivot may be done is not undone.
func TestOperatorAbortsTooLate(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.undoable("a"), g.act("p", InProgress(time.Minute)).Pivot(), g.act("z", InProgress(time.Minute)))
		r := serveBegun(t, nil, d, "1", "in")
		synctest.Wait()
		o := NewOperator(r.coordinator.Journal())
		err := o.Abort(t.Context(), "1", ann)
		if wantKind(t, err, interlock.Definite, ErrState); !strings.Contains(err.Error(), `pivot "p" may have happened`) {
			t.Error(err)
		}
		time.Sleep(90 * time.Second) // the pivot is done
		wantKind(t, o.Abort(t.Context(), "1", ann), interlock.Definite, ErrState)
		ok(t, txntest.Second(r.engine.Wait(t.Context(), "1")))
		same(t, "effects", g.did(), "1/a/do", "1/p/do", "1/z/do")
	})
}

// TestPivotSettled: an operator records the outcome of a pivot that does not answer. Then the
// saga continues, with its output, or is undone. The actor and the reason are recorded.
func TestPivotSettled(t *testing.T) {
	for name, c := range map[string]struct {
		settle func(t *testing.T, o *Operator) error
		end    State
		want   []string
	}{
		"done": {func(t *testing.T, o *Operator) error {
			return o.Done(t.Context(), "1", "p", json.RawMessage(`"receipt"`), ann)
		}, Succeeded, []string{"1/a/do", "1/z/do"}},
		"not done": {func(t *testing.T, o *Operator) error { return o.NotDone(t.Context(), "1", "p", ann) }, Compensated, []string{"1/a/do", "1/a/undo"}},
	} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			d := Define("order", g.undoable("a"), g.act("p", always(errNetwork)...).Retry(Policy{First: time.Hour, Max: time.Hour}).Pivot(), g.act("z"))
			r := serveBegun(t, nil, d, "1", "in")
			synctest.Wait()
			ok(t, c.settle(t, NewOperator(r.coordinator.Journal())))
			time.Sleep(5 * time.Second)
			same(t, "effects", g.did(), c.want...)
			looked, err := r.engine.Look(t.Context(), "1")
			if ok(t, err); looked.State != c.end {
				t.Errorf("%+v", looked)
			}
			if c.end == Compensated && looked.Reason == "" || c.end == Succeeded && string(looked.Outputs.All()["p"]) != `"receipt"` {
				t.Errorf("%+v", looked)
			}
			_, entries, err := r.coordinator.Journal().Open(t.Context(), "1")
			ok(t, err)
			moments, err := Replay(entries)
			ok(t, err)
			var who By
			for _, m := range moments {
				if m.Kind == recordSettle {
					who = m.By
				}
			}
			txntest.Equal(t, "by", who, ann)
			unscheduled(t, r.store.Journal)
		})
	}
}

// TestSettledMisuse: a step that was answered, waits, is not yet due, or cannot fail any more
// is not settled, and nothing is written.
func TestSettledMisuse(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.undoable("a"), g.undoable("b", InProgress(time.Hour)), g.undoable("c"), Sleep[string]("w", time.Hour),
			g.act("p").Pivot(), g.act("z", InProgress(time.Hour)))
		r := serve(t, nil, 1, nil, d)
		o, ctx := NewOperator(r.coordinator.Journal()), t.Context()
		ok(t, d.Start(ctx, r.engine, "1", "in"))
		synctest.Wait()
		before := len(r.records(t, "1"))
		for _, step := range []string{"a", "c", "w", "p", "nobody", ""} {
			wantKind(t, o.Done(ctx, "1", step, nil, ann), interlock.Definite, ErrState)
			wantKind(t, o.NotDone(ctx, "1", step, ann), interlock.Definite, ErrState)
		}
		if err := o.Done(ctx, "1", "nobody", nil, ann); !strings.Contains(err.Error(), `no step "nobody" has begun; those that have are: "a", "b"`) {
			t.Error(err)
		}
		wantKind(t, o.Done(ctx, "1", "b", json.RawMessage("{"), ann), interlock.Bug, nil)
		wantKind(t, o.Done(ctx, "1", "b", json.RawMessage(`"`+strings.Repeat("a", driver.MaxPayload)+`"`), ann), interlock.Bug, nil)
		wantKind(t, o.Done(ctx, "1", "b", nil, By{Actor: "ann"}), interlock.Bug, nil)
		if n := len(r.records(t, "1")); n != before {
			t.Errorf("%v", r.records(t, "1"))
		}
		ok(t, o.Done(ctx, "1", "b", nil, ann))
		time.Sleep(time.Minute)
		wantKind(t, o.Done(ctx, "1", "w", nil, ann), interlock.Definite, ErrState) // Now ends it
		time.Sleep(90 * time.Minute)
		err := o.NotDone(ctx, "1", "z", ann)
		if wantKind(t, err, interlock.Definite, ErrState); !strings.Contains(err.Error(), "given up") {
			t.Error(err)
		}
		ok(t, o.Done(ctx, "1", "z", nil, ann))
		looked, err := r.engine.Wait(ctx, "1")
		if ok(t, err); looked.State != Succeeded {
			t.Errorf("%+v", looked)
		}
		same(t, "effects", g.did(), "1/a/do", "1/c/do", "1/p/do")
	})
}
