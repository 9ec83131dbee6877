package choreography_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/choreography"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // handlers fail on purpose
	testbed.Main(m)
}

// bound limits each wait for a condition.
const bound = 60 * time.Second

var box = outbox.Table{Slices: 2}

// shop returns the definition of the tests, with a bound on stalls.
func shop(stalled time.Duration) *choreography.Definition {
	return &choreography.Definition{Name: "shop", Topic: "orders", Cancelled: "order cancelled", Stalled: stalled, Steps: []choreography.Step{
		{Done: "order placed", Undone: "order closed"},
		{Done: "stock reserved", Undone: "stock released", Failed: "stock missing"},
		{Done: "card charged", Undone: "card refunded", Failed: "card declined"},
	}}
}

// service returns the participant of a step. Each has its own tables.
func service(d *choreography.Definition, step int) choreography.Participant {
	return choreography.Participant{Definition: d, Step: d.Steps[step].Done, Outbox: box, Barrier: barrier.Table{Name: fmt.Sprint("barrier", step)}}
}

// opened returns a database with the tables of all services and of the tracker.
func opened(t *testing.T, open func(testing.TB) *databases.DB, tracker choreography.Tracker) *databases.DB {
	db := open(t)
	db.Do(t, box.Create)
	db.Do(t, tracker.Create)
	for i := range tracker.Definition.Steps {
		db.Do(t, service(tracker.Definition, i).Barrier.Create)
	}
	db.Exec(t, `create table effect (saga varchar(64) not null, step int not null, what varchar(8) not null)`)
	return db
}

// effect records that a step was done or undone.
func effect(ctx context.Context, tx driver.SQL, saga string, step int, what string) error {
	_, err := tx.Exec(ctx, fmt.Sprintf(`insert into effect (saga, step, what) values ('%s', %d, '%s')`, saga, step, what))
	return err
}

func effects(t *testing.T, db *databases.DB, saga string, step int, what string) int64 {
	return databases.One[int64](t, db, fmt.Sprintf(`select count(*) from effect where saga = '%s' and step = %d and what = '%s'`, saga, step, what))
}

// handle handles an event in a service: its step follows the previous one.
func handle(ctx context.Context, tx driver.SQL, p choreography.Participant, step int, e choreography.Event, declined func(saga string) bool) error {
	d := p.Definition
	switch {
	case step > 0 && e.Name == d.Steps[step-1].Done:
		return p.Do(ctx, tx, e, func(ctx context.Context) ([]byte, error) {
			if step == 2 && declined(e.Saga) {
				return nil, branch.Fail(errors.New("no money"))
			}
			return []byte(e.Saga), effect(ctx, tx, e.Saga, step, "done")
		})
	case d.Undoes(e.Name):
		return p.Undo(ctx, tx, e, func(ctx context.Context, _ []byte) error { return effect(ctx, tx, e.Saga, step, "undone") })
	}
	return nil
}

// place begins a saga.
func place(ctx context.Context, tx driver.SQL, d *choreography.Definition, saga string) error {
	return service(d, 0).Do(ctx, tx, choreography.Event{Saga: saga}, func(ctx context.Context) ([]byte, error) {
		return []byte(saga), effect(ctx, tx, saga, 0, "done")
	})
}

// relayed runs a relay until the test ends.
func relayed(t *testing.T, db *databases.DB, fn func(ctx context.Context, m driver.Message) error) {
	t.Helper()
	relay, err := outbox.NewRelay(db, box, outbox.Func(fn), &outbox.Options{MinPause: time.Millisecond, MaxPause: 20 * time.Millisecond, MaxPoll: 20 * time.Millisecond,
		Hooks: &observe.Outbox{Log: observe.Silent}})
	testbed.OK(t, err)
	locks, err := lock.NewFenced(memory.NewSpace().Open(nil), nil)
	testbed.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = locks.Keep(ctx, "outbox", relay.RunAll) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		_ = locks.Close(context.Background())
	})
}

func received(m driver.Message) driver.QueueMessage {
	return driver.QueueMessage{ID: m.ID, Key: m.Key, Headers: m.Headers, Payload: m.Payload}
}

// A network loses, repeats, delays and reorders what it delivers to each receiver.
type network struct {
	mu     sync.Mutex
	random *rand.Rand
	late   []func(ctx context.Context) error
	calm   bool
	faults map[string]int
}

// deliver calls handle a random number of times, at random times, and returns its error if the
// sender is to retry.
func (n *network) deliver(ctx context.Context, handle func(ctx context.Context) error) error {
	n.mu.Lock()
	chance := n.random.IntN(100)
	if n.calm {
		chance = 100
	}
	fault := ""
	switch {
	case chance < 15:
		fault = "lost"
	case chance < 35:
		fault = "late"
		n.late = append(n.late, handle)
	case chance < 50:
		fault = "repeated"
	case chance < 60:
		fault = "answer lost"
	}
	n.faults[fault]++
	n.mu.Unlock()
	switch fault {
	case "lost", "late":
		return nil
	case "repeated":
		_ = handle(ctx) // the other one counts
	case "answer lost":
		_ = handle(ctx)
		return errors.New("the answer was lost")
	}
	return handle(ctx)
}

// release delivers the late messages, in any order, and keeps those that fail.
func (n *network) release(ctx context.Context) (left int) {
	n.mu.Lock()
	late := n.late
	n.late = nil
	n.random.Shuffle(len(late), func(i, j int) { late[i], late[j] = late[j], late[i] })
	n.mu.Unlock()
	var failed []func(ctx context.Context) error
	for _, handle := range late {
		if handle(ctx) != nil {
			failed = append(failed, handle)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.late = append(n.late, failed...)
	return len(n.late)
}

// TestFaults: three services and a tracker, with messages that are lost, repeated, late and out
// of order. Handlers die before their commit, and a service is down until the tracker finds
// stalled sagas. Every saga ends completed or compensated, with the corresponding effects.
func TestFaults(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		const sagas = 24
		tracker := choreography.Tracker{Definition: shop(200 * time.Millisecond), Outbox: box}
		d := tracker.Definition
		db := opened(t, open, tracker)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		n := &network{random: rand.New(rand.NewPCG(seed, 0)), faults: map[string]int{}}
		declined := func(saga string) bool { return saga[len(saga)-1] == '1' }
		cancelled := func(saga string) bool { return saga[len(saga)-1] == '2' }
		var down sync.Map // services that get nothing
		down.Store(2, true)
		died := errors.New("the process died before its commit")
		chance := func(percent int) bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return !n.calm && n.random.IntN(100) < percent
		}
		relayed(t, db, func(ctx context.Context, m driver.Message) error {
			all := []error{n.deliver(ctx, func(ctx context.Context) error {
				return db.Try(ctx, func(ctx context.Context, tx driver.SQL) error { return tracker.Observe(ctx, tx, received(m)) })
			})}
			for step := range d.Steps {
				if _, ok := down.Load(step); ok {
					continue
				}
				all = append(all, n.deliver(ctx, func(ctx context.Context) error {
					return db.Try(ctx, func(ctx context.Context, tx driver.SQL) error {
						e, ok := d.Read(received(m))
						if !ok {
							return errors.New("a message without an event")
						}
						err := handle(ctx, tx, service(d, step), step, e, declined)
						if err == nil && chance(10) {
							return died
						}
						return err
					})
				}))
			}
			return errors.Join(all...)
		})
		var ids []string
		request := func(id string) error {
			err := db.Try(t.Context(), func(ctx context.Context, tx driver.SQL) error { return place(ctx, tx, d, id) })
			if cancelled(id) {
				err = errors.Join(err, db.Try(t.Context(), func(ctx context.Context, tx driver.SQL) error {
					return box.Add(ctx, tx, d.Message(choreography.Event{Saga: id, Name: d.Cancelled}))
				}))
			}
			return err
		}
		for i := range sagas {
			id := fmt.Sprint("saga", i)
			ids = append(ids, id)
			testbed.OK(t, request(id))
		}
		list := func() (all []choreography.Saga) {
			db.Do(t, func(ctx context.Context, tx driver.SQL) (err error) {
				all, err = tracker.List(ctx, tx, choreography.Filter{})
				return err
			})
			return all
		}
		stalled := 0
		reconcile := func() {
			_ = db.Try(t.Context(), func(ctx context.Context, tx driver.SQL) error {
				all, err := tracker.Reconcile(ctx, tx, choreography.Policy{Repeats: 1000})
				for _, r := range all {
					if stalled++; r.Action == choreography.Reported {
						t.Errorf("%+v", r)
					}
				}
				return err
			})
		}
		testbed.Eventually(t, "the sagas without the service that is down are stalled", bound, func() bool {
			reconcile()
			return stalled >= 10
		})
		down.Delete(2)
		finished := func() bool {
			reconcile()
			n.release(t.Context())
			all := list()
			// If the first events of a saga are lost, or all of its cancellation, the tracker cannot emit
			// them again. So the shop repeats its requests, as after any without an answer.
			for _, id := range ids {
				if !slices.ContainsFunc(all, func(s choreography.Saga) bool {
					return s.ID == id && (s.State != choreography.Running || !cancelled(id) && slices.Contains(s.Events, d.Steps[0].Done))
				}) {
					_ = request(id)
				}
			}
			return len(all) == sagas && !slices.ContainsFunc(all, func(s choreography.Saga) bool {
				return s.State != choreography.Completed && s.State != choreography.Compensated
			})
		}
		defer func() {
			if t.Failed() {
				for _, s := range list() {
					t.Logf("%+v", s)
				}
			}
		}()
		testbed.Eventually(t, "every saga ends", bound, finished)
		n.mu.Lock()
		n.calm = true
		n.mu.Unlock()
		for _, id := range ids {
			if cancelled(id) {
				_ = request(id) // the services that it undoes may all have lost the first cancellation
			}
		}
		// Late and repeated messages arrive after the sagas have ended, and cancellations undo some.
		testbed.Eventually(t, "no message is left", bound, func() bool {
			ended := finished()
			return n.release(t.Context()) == 0 && databases.One[int64](t, db, `select count(*) from interlock_outbox`) == 0 && ended && finished()
		})
		for _, s := range list() {
			if undone := declined(s.ID) || cancelled(s.ID); undone != (s.State == choreography.Compensated) || !undone && s.State != choreography.Completed {
				t.Errorf("%+v", s)
			}
			for step := range d.Steps {
				done, undone := effects(t, db, s.ID, step, "done"), effects(t, db, s.ID, step, "undone")
				if s.State == choreography.Completed && (done != 1 || undone != 0) || s.State == choreography.Compensated && done != undone || done > 1 {
					t.Errorf("%s is %s, and step %d was done %d times and undone %d times", s.ID, s.State, step, done, undone)
				}
			}
		}
		t.Logf("%v, %d times events were emitted again", n.faults, stalled)
		for _, f := range []string{"lost", "late", "repeated", "answer lost"} {
			if n.faults[f] == 0 {
				t.Errorf("no message was %s", f)
			}
		}
	})
}

func kind(err error) interlock.ErrorKind { return interlock.Kind(err) }
