package choreography_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/choreography"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// A sent list contains the messages that a relay delivered.
type sent struct {
	mu  sync.Mutex
	all []driver.Message
}

func (s *sent) take(_ context.Context, m driver.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, m)
	return nil
}

// next waits until the outbox is empty, and returns the messages since the last call.
func (s *sent) next(t *testing.T, db *databases.DB) (all []driver.Message) {
	t.Helper()
	testbed.Eventually(t, "the outbox is empty", bound, func() bool {
		return databases.One[int64](t, db, `select count(*) from interlock_outbox`) == 0
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	all, s.all = s.all, nil
	return all
}

// names returns the events of messages.
func names(all []driver.Message) (names []string) {
	for _, m := range all {
		names = append(names, m.Headers[choreography.HeaderEvent])
	}
	return names
}

// tracked is a tracker in a database, whose clock the test moves.
type tracked struct {
	*testing.T
	choreography.Tracker
	db *databases.DB
}

func (w tracked) observe(saga string, events ...string) {
	w.Helper()
	for _, name := range events {
		m := w.Definition.Message(choreography.Event{Saga: saga, Name: name, Payload: []byte(name), Begun: time.UnixMilli(1700000000000), Headers: map[string]string{"trace": saga}})
		w.db.Do(w.T, func(ctx context.Context, tx driver.SQL) error { return w.Observe(ctx, tx, received(m)) })
	}
}

func (w tracked) reconcile(p choreography.Policy) (all []choreography.Reconciled) {
	w.Helper()
	w.db.Do(w.T, func(ctx context.Context, tx driver.SQL) (err error) {
		all, err = w.Reconcile(ctx, tx, p)
		return err
	})
	return all
}

// pass moves the tracker's clock forward.
func (w tracked) pass(d time.Duration) {
	w.Helper()
	w.db.Exec(w.T, fmt.Sprintf(`update interlock_choreography set progressed = progressed - %d, stalled = stalled - %[1]d, due = due - %[1]d where due < 4000000000000000000`, d.Microseconds()),
		fmt.Sprintf(`update interlock_choreography set progressed = progressed - %d, stalled = case when stalled = due then stalled else stalled - %[1]d end where due > 4000000000000000000`, d.Microseconds()))
}

// ids returns the sagas that a filter selects.
func (w tracked) ids(f choreography.Filter) string {
	w.Helper()
	var ids []string
	for _, s := range w.list(f) {
		ids = append(ids, s.ID)
	}
	return strings.Join(ids, " ")
}

func (w tracked) list(f choreography.Filter) (all []choreography.Saga) {
	w.Helper()
	w.db.Do(w.T, func(ctx context.Context, tx driver.SQL) (err error) {
		all, err = w.List(ctx, tx, f)
		return err
	})
	return all
}

func eachTracker(t *testing.T, test func(w tracked)) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		tracker := choreography.Tracker{Definition: shop(time.Hour), Outbox: box}
		test(tracked{t, tracker, opened(t, open, tracker)})
	})
}

// TestReconcile: a stalled saga is found after its bound and not before. It is repeated, cancelled
// and reported, in that order and as often as the policy allows. A new event resets the count.
func TestReconcile(t *testing.T) {
	eachTracker(t, func(w tracked) {
		var s sent
		relayed(w.T, w.db, s.take)
		w.observe("1", "order placed", "stock reserved", "order placed")
		w.pass(59 * time.Minute)
		if all := w.reconcile(choreography.Policy{}); len(all) != 0 || w.ids(choreography.Filter{Stalled: true}) != "" {
			w.Errorf("%+v before the bound", all)
		}
		if w.db.Dialect == driver.Postgres {
			plan := &databases.Planned{BeginnerAt: w.db}
			plan.Do(w.T, func(ctx context.Context, tx driver.SQL) error {
				_, err := w.Reconcile(ctx, tx, choreography.Policy{})
				return err
			})
			plan.Want(w.T, "due")
		}
		w.pass(time.Minute)
		if ids := w.ids(choreography.Filter{Stalled: true}); ids != "1" {
			w.Errorf("stalled: %q", ids)
		}
		p := choreography.Policy{Repeats: 2, Cancel: true}
		for i, want := range []string{"order placed, stock reserved", "order placed, stock reserved", "order cancelled", "order cancelled", ""} {
			all := w.reconcile(p)
			if len(all) != 1 || all[0].ID != "1" || all[0].Attempts != i || !all[0].Stalled || all[0].Reported != (want == "") {
				w.Fatalf("%d: %+v", i, all)
			}
			if again := w.reconcile(p); len(again) != 0 {
				w.Errorf("%d: at once again: %+v", i, again)
			}
			messages := s.next(w.T, w.db)
			if got := strings.Join(names(messages), ", "); got != want {
				w.Errorf("%d: %s, want %s", i, got, want)
			}
			for _, m := range messages {
				e, ok := w.Definition.Read(received(m))
				if !ok || m.Topic != "orders" || m.Key != "1" || e.Headers["trace"] != "1" || e.Begun.UnixMilli() != 1700000000000 {
					w.Errorf("%+v", m)
				}
				if e.Name != w.Definition.Cancelled && string(e.Payload) != e.Name || e.Name == w.Definition.Cancelled && e.Cause != "shop/1/stock reserved" {
					w.Errorf("%+v", e)
				}
			}
			w.pass(time.Hour)
		}
		if ids := w.ids(choreography.Filter{Reported: true}); ids != "1" {
			w.Errorf("reported: %q", ids)
		}
		w.observe("1", "order cancelled")
		if all := w.list(choreography.Filter{ID: "1"}); len(all) != 1 || all[0].State != choreography.Compensating || all[0].Reported || all[0].Attempts != 0 || all[0].Stalled {
			w.Errorf("%+v", all)
		}
		w.pass(time.Hour)
		if all := w.reconcile(choreography.Policy{}); len(all) != 1 || all[0].Action != choreography.Repeated {
			w.Errorf("%+v", all)
		}
		if got := names(s.next(w.T, w.db)); !slices.Equal(got, []string{"order cancelled"}) {
			w.Errorf("%v", got)
		}
	})
}

// TestEnded: late events do not change an ended saga, and Forget deletes it when it is old.
func TestEnded(t *testing.T) {
	eachTracker(t, func(w tracked) {
		w.observe("done", "order placed", "stock reserved", "card charged")
		w.observe("undone", "order placed", "card declined", "order closed", "stock released")
		w.observe("undone", "stock reserved", "order cancelled", "card refunded")
		w.pass(2 * time.Hour)
		if all := w.reconcile(choreography.Policy{Cancel: true}); len(all) != 0 {
			w.Errorf("%+v", all)
		}
		for id, state := range map[string]choreography.State{"done": choreography.Completed, "undone": choreography.Compensated} {
			if ids := w.ids(choreography.Filter{State: state}); ids != id {
				w.Errorf("%s: %s", state, ids)
			}
		}
		if ids := w.ids(choreography.Filter{Stalled: true}) + w.ids(choreography.Filter{Reported: true}); ids != "" {
			w.Errorf("%s wait for something", ids)
		}
		w.observe("runs", "order placed")
		w.pass(2 * time.Hour)
		forget := func(age time.Duration, limit, want int) {
			w.Helper()
			w.db.Do(w.T, func(ctx context.Context, tx driver.SQL) error {
				n, err := w.Forget(ctx, tx, age, limit)
				txntest.Equal(w.T, "forgotten", n, want)
				return err
			})
		}
		forget(5*time.Hour, 10, 0)
		forget(3*time.Hour, 1, 1)
		forget(3*time.Hour, 10, 1)
		forget(time.Hour, 10, 0) // it runs
		if ids := w.ids(choreography.Filter{}); ids != "runs" {
			w.Errorf("%s are left", ids)
		}
		txntest.Equal(w.T, "events are left", databases.One[int64](w.T, w.db, `select count(*) from interlock_choreography_event`), 1)
	})
}

// TestContradiction: it is found at once, and reported, or undone if the policy cancels.
func TestContradiction(t *testing.T) {
	eachTracker(t, func(w tracked) {
		w.observe("1", "card charged", "card declined")
		w.observe("2", "order placed", "order lost")
		for p, want := range map[choreography.Policy]choreography.Action{{}: choreography.Reported} {
			all := w.reconcile(p)
			if len(all) != 2 || all[0].Action != want || all[1].Action != want || all[0].State != choreography.Contradictory || all[0].Reason == "" || all[0].Definition != "shop" {
				w.Errorf("%+v", all)
			}
		}
		w.observe("3", "card charged", "card declined")
		w.observe("4", "order placed", "order lost")
		got := map[string]choreography.Action{}
		for _, r := range w.reconcile(choreography.Policy{Cancel: true}) {
			got[r.ID] = r.Action
		}
		if !reflect.DeepEqual(got, map[string]choreography.Action{"3": choreography.Repeated, "4": choreography.Cancelled}) {
			w.Errorf("%v", got)
		}
	})
}

// TestTransactions: Reconcile skips a locked saga, a rollback leaves nothing, and each call takes
// the documented number of statements.
func TestTransactions(t *testing.T) {
	eachTracker(t, func(w tracked) {
		w.observe("1", "order placed")
		w.observe("2", "order placed")
		w.pass(time.Hour)
		tx := w.db.Begun(w.T, driver.ReadCommitted)
		if _, err := tx.Exec(w.Context(), `select id from interlock_choreography where definition = 'shop' and id = '1' for update`); err != nil {
			w.Fatal(err)
		}
		undone := errors.New("rolled back")
		for range 2 {
			err := w.db.Try(w.Context(), func(ctx context.Context, tx driver.SQL) error {
				all, err := w.Reconcile(ctx, tx, choreography.Policy{})
				if len(all) != 1 || all[0].ID != "2" {
					w.Errorf("%+v", all)
				}
				return errors.Join(err, undone)
			})
			if !errors.Is(err, undone) {
				w.Fatal(err)
			}
		}
		if err := tx.Rollback(context.Background()); err != nil {
			w.Fatal(err)
		}
		if all := w.reconcile(choreography.Policy{Limit: 1}); len(all) != 1 {
			w.Errorf("%+v", all)
		}
		var counted databases.Counted
		for i, want := range []int64{4, 2} {
			w.db.Do(w.T, func(ctx context.Context, tx driver.SQL) error {
				return w.Observe(ctx, counted.SQL(tx), received(w.Definition.Message(choreography.Event{Saga: "3", Name: "order placed"})))
			})
			if n := counted.Statements.Load(); n != want {
				w.Errorf("%d: %d statements, not %d", i, n, want)
			}
			counted.Reset()
		}
		w.db.Do(w.T, func(ctx context.Context, tx driver.SQL) error {
			return w.Observe(ctx, tx, driver.QueueMessage{ID: "x", Headers: map[string]string{choreography.HeaderSaga: "other/9", choreography.HeaderEvent: "order placed", choreography.HeaderBegun: "1"}})
		})
		if all, one := w.list(choreography.Filter{}), (choreography.Tracker{}); true {
			w.db.Do(w.T, func(ctx context.Context, tx driver.SQL) error {
				same, err := one.List(ctx, tx, choreography.Filter{})
				if len(same) != len(all) || len(all) != 3 {
					w.Errorf("%+v of all definitions, %+v of one", same, all)
				}
				return err
			})
		}
		if ids := w.ids(choreography.Filter{After: "1"}) + "; " + w.ids(choreography.Filter{Limit: 1}) + "; " + w.ids(choreography.Filter{Idle: time.Hour}); ids != "2 3; 1; 1 2" {
			w.Error(ids)
		}
		w.db.Do(w.T, func(ctx context.Context, tx driver.SQL) error {
			_, listed := w.List(ctx, tx, choreography.Filter{Limit: -1})
			_, found := w.Reconcile(ctx, tx, choreography.Policy{Limit: -1})
			_, forgot := w.Forget(ctx, tx, 0, 1)
			undefined := choreography.Tracker{}.Observe(ctx, tx, driver.QueueMessage{})
			_, mixed := choreography.Tracker{}.List(ctx, tx, choreography.Filter{After: "1"})
			for _, err := range []error{listed, found, forgot, undefined, mixed} {
				if kind(err) != interlock.Bug {
					w.Errorf("%v", err)
				}
			}
			return nil
		})
	})
}

// TestEvents: a saga's events are listed in the order of their arrival, with their causes.
func TestEvents(t *testing.T) {
	eachTracker(t, func(w tracked) {
		e := choreography.Event{Saga: "1", Name: "stock reserved", Cause: "shop/1/order placed", Begun: time.UnixMilli(5000), Headers: map[string]string{"a": "b"}, Payload: []byte("x")}
		w.db.Do(w.T, func(ctx context.Context, tx driver.SQL) error {
			return w.Observe(ctx, tx, received(w.Definition.Message(e)))
		})
		w.observe("1", "order placed")
		w.db.Do(w.T, func(ctx context.Context, tx driver.SQL) error {
			all, err := w.Events(ctx, tx, "1")
			if len(all) != 2 || !reflect.DeepEqual(all[0].Event, e) || all[1].Name != "order placed" || all[0].At.After(all[1].At) || time.Since(all[0].At).Abs() > time.Hour {
				w.Errorf("%+v", all)
			}
			return err
		})
		if all := w.list(choreography.Filter{}); len(all) != 1 || all[0].Begun.UnixMilli() != 5000 || strings.Join(all[0].Events, ", ") != "order placed, stock reserved" {
			w.Errorf("%+v", all)
		}
	})
}

// TestParticipant: a repeated event has no effect and the same answer, also after a refusal, and
// an undo prevents a late do.
func TestParticipant(t *testing.T) {
	eachTracker(t, func(w tracked) {
		var s sent
		relayed(w.T, w.db, s.take)
		d := w.Definition
		cause := choreography.Event{Saga: "1", Name: "order placed", Begun: time.UnixMilli(1700000000000), Headers: map[string]string{"trace": "t"}}
		refuse := false
		do := func(p choreography.Participant, step int, e choreography.Event) error {
			return w.db.Try(w.Context(), func(ctx context.Context, tx driver.SQL) error {
				return p.Do(ctx, tx, e, func(ctx context.Context) ([]byte, error) {
					err := effect(ctx, tx, e.Saga, step, "done")
					if err == nil && refuse {
						err = branch.Fail(errors.New("no money"))
					}
					return []byte("paid"), err
				})
			})
		}
		undo := func(p choreography.Participant, step int, e choreography.Event, want string) error {
			return w.db.Try(w.Context(), func(ctx context.Context, tx driver.SQL) error {
				return p.Undo(ctx, tx, e, func(ctx context.Context, done []byte) error {
					if string(done) != want {
						w.Errorf("undo of %q", done)
					}
					return effect(ctx, tx, e.Saga, step, "undone")
				})
			})
		}
		// emitted checks the messages of a repeated call.
		emitted := func(err error, event, payload string) {
			w.Helper()
			if err != nil {
				w.Fatal(err)
			}
			all := s.next(w.T, w.db)
			if !slices.Equal(names(all), []string{event, event}) || all[0].ID == all[1].ID || string(all[0].Payload) != payload || !reflect.DeepEqual(all[0].Headers, all[1].Headers) {
				w.Fatalf("%+v; want %s twice", all, event)
			}
			if e, ok := d.Read(received(all[1])); !ok || e.Cause != d.ID(cause) || e.Headers["trace"] != "t" || !e.Begun.Equal(cause.Begun) || string(e.Payload) != payload {
				w.Errorf("%+v", e)
			}
		}
		card := service(d, 2)
		emitted(errors.Join(do(card, 2, cause), do(card, 2, cause)), "card charged", "paid")
		cause.Name = "order cancelled"
		emitted(errors.Join(undo(card, 2, cause, "paid"), undo(card, 2, cause, "paid")), "card refunded", "")
		if do(card, 2, cause) != nil || len(s.next(w.T, w.db)) != 0 || effects(w.T, w.db, "1", 2, "done") != 1 || effects(w.T, w.db, "1", 2, "undone") != 1 {
			w.Error("a late event has an effect")
		}
		cause.Saga = "2" // undone before it is done
		emitted(errors.Join(undo(card, 2, cause, ""), undo(card, 2, cause, "")), "card refunded", "")
		if do(card, 2, cause) != nil || len(s.next(w.T, w.db)) != 0 || effects(w.T, w.db, "2", 2, "done")+effects(w.T, w.db, "2", 2, "undone") != 0 {
			w.Error("an event that was overtaken has an effect")
		}
		cause.Saga, refuse = "3", true
		emitted(errors.Join(do(card, 2, cause), do(card, 2, cause)), "card declined", "no money")
		if effects(w.T, w.db, "3", 2, "done") != 0 {
			w.Error("a refused step has an effect")
		}
		if err := do(service(d, 0), 0, cause); kind(err) != interlock.Bug {
			w.Errorf("a refusal without an event: %v", err)
		}
		card.Step = "card swallowed"
		if err := do(card, 2, cause); kind(err) != interlock.Bug {
			w.Errorf("an unknown step: %v", err)
		}
		if err := do(service(d, 2), 2, choreography.Event{}); kind(err) != interlock.Bug {
			w.Errorf("no saga: %v", err)
		}
		d.Steps[2].Pivot, refuse = true, false
		card, cause.Saga = service(d, 2), "4"
		emitted(errors.Join(do(card, 2, cause), do(card, 2, cause)), "card charged", "paid")
		for range 2 {
			if err := undo(card, 2, cause, ""); !errors.Is(err, choreography.ErrPivot) || kind(err) != interlock.Definite {
				w.Errorf("the undo of a pivot: %v", err)
			}
		}
		cause.Saga = "5"
		emitted(errors.Join(undo(card, 2, cause, ""), undo(card, 2, cause, "")), "card refunded", "")
		w.db.Do(w.T, func(ctx context.Context, tx driver.SQL) error { return place(ctx, tx, d, "6") })
		w.db.Do(w.T, func(ctx context.Context, tx driver.SQL) error { return place(ctx, tx, d, "7") })
		if all := s.next(w.T, w.db); len(all) != 2 || all[0].Headers[choreography.HeaderCause] != "" || all[0].Headers[choreography.HeaderBegun] == "" || all[0].ID == all[1].ID {
			w.Errorf("%+v", all)
		}
		if databases.One[int64](w.T, w.db, `select count(*) from effect where step = 0`) != 2 {
			w.Error("no effect")
		}
	})
}
