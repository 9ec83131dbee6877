package tcc

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// silent is a journal whose reads can fail.
type silent struct {
	*watched
	mu    sync.Mutex
	fails error // of a read; nil is none
}

func (s *silent) Read(ctx context.Context, id string, after int64) (driver.Head, []driver.Record, error) {
	s.mu.Lock()
	err := s.fails
	s.mu.Unlock()
	if err != nil {
		return driver.Head{}, nil, err
	}
	return s.watched.Read(ctx, id, after)
}

func (s *silent) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
}

// failures are the transactions that a coordinator could not drive.
type failures struct {
	mu   sync.Mutex
	errs []error
}

func (f *failures) hook() *observe.Coordinator {
	return &observe.Coordinator{Failed: func(e observe.CoordinatorFailed) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.errs = append(f.errs, e.Err)
	}}
}

func (f *failures) all() error {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.errs...)
}

// quiet returns an engine over a silent journal; it serves nothing.
func quiet(t *testing.T, o *Options, venues ...*venue) (*rig, *silent, *failures) {
	t.Helper()
	store, failed := &silent{watched: txntest.NewJournal()}, &failures{}
	j, err := journal.New(store, &journal.Options{Shards: 1, Patience: time.Second})
	ok(t, err)
	t.Cleanup(func() { ok(t, j.Close()) })
	c, err := coordinator.New(j, &coordinator.Options{Random: func() float64 { return 0.5 }, Hooks: failed.hook()})
	ok(t, err)
	var defs []Defined
	for _, v := range venues {
		defs = append(defs, v.define())
	}
	m, err := New(c, o, defs...)
	ok(t, err)
	return &rig{Engine: m, store: store.watched, stop: func() {}}, store, failed
}

// TestUnreadJournal: an engine that cannot read the decision tries nothing, and reports the
// transaction neither as confirmed nor as missing.
func TestUnreadJournal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hotel := newVenue("hotel", 1)
		r, store, _ := quiet(t, nil, hotel)
		store.set(&interlock.Error{Op: "read", Driver: "x", Kind: interlock.Uncertain, Err: errNetwork})
		_, err := r.run(t.Context(), "1", hotel)
		wantKind(t, err, interlock.Retryable, errNetwork)
		if len(hotel.post.keys) != 0 {
			t.Errorf("called: %v", hotel.post.keys)
		}
		o := NewOperator(r.coordinator.Journal())
		for what, err := range map[string]error{
			"look": txntest.Second(r.Look(t.Context(), "1")), "decide": txntest.Second(r.Decide(t.Context(), "1", "hotel")),
			"retry": o.Retry(t.Context(), "1", "", somebody),
		} {
			if !errors.Is(err, errNetwork) || errors.Is(err, ErrNone) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if n := r.store.Appends(); n != 0 {
			t.Errorf("%d appends", n)
		}
	})
}

// TestUnwrittenDecision: a participant that asks does not get a cancel before that is in
// the journal.
func TestUnwrittenDecision(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, store, _ := quiet(t, nil)
		store.Fail = func(int, driver.Append) (before, after error) { return errNetwork, nil }
		d, err := r.Decide(t.Context(), "1", "hotel")
		if wantKind(t, err, interlock.Uncertain, errNetwork); d != "" {
			t.Errorf("%s", d)
		}
	})
}

// TestFollowSilentJournal: another process has decided meanwhile, and the journal cannot be
// read. Run retries for a while. While the decision is unknown, it cancels nothing that may
// be confirmed.
func TestFollowSilentJournal(t *testing.T) {
	for silence, want := range map[time.Duration]string{3 * time.Second: "cancelled", time.Hour: "held"} {
		bubble(t, func(t *testing.T) {
			hotel := newVenue("hotel", 1)
			hotel.bad = slowTry(time.Second)
			r, store, _ := quiet(t, nil, hotel)
			var err error
			var work sync.WaitGroup
			work.Go(func() { _, err = r.run(t.Context(), "1", hotel) })
			synctest.Wait()
			_, asked := r.Decide(t.Context(), "1", "hotel")
			ok(t, asked)
			store.set(errNetwork)
			work.Go(func() { time.Sleep(silence); store.set(nil) })
			time.Sleep(time.Minute)
			synctest.Wait()
			if want == "held" {
				wantKind(t, err, interlock.Uncertain, errNetwork)
			} else {
				wantKind(t, err, interlock.Definite, ErrCancelled)
			}
			if is := hotel.state("1"); is != want {
				t.Errorf("silent for %v: it is %s", silence, is)
			}
			work.Wait()
		})
	}
}

// TestReleaseIsRepeated: the cancel of a useless hold is repeated if it failed, not if it
// succeeded, and not forever.
func TestReleaseIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		venues := []*venue{newVenue("once", 1), newVenue("twice", 1), newVenue("never", 1)}
		var mu sync.Mutex
		cancels := map[string]int{}
		for _, v := range venues {
			v.bad = func(c branch.Call) (before, after error) {
				if c.Operation == branch.Try {
					time.Sleep(time.Second)
					return nil, nil
				}
				mu.Lock()
				defer mu.Unlock()
				cancels[v.name]++
				if v.name == "never" || v.name == "twice" && c.Attempt == 1 {
					return branch.Retry(errFull), nil
				}
				return nil, nil
			}
		}
		r, _, _ := quiet(t, nil, venues...)
		var err error
		var work sync.WaitGroup
		work.Go(func() { _, err = r.run(t.Context(), "1", venues...) })
		synctest.Wait()
		_, asked := r.Decide(t.Context(), "1", "once")
		ok(t, asked)
		work.Wait()
		wantKind(t, err, interlock.Definite, ErrCancelled)
		if cancels["once"] != 1 || cancels["twice"] != 2 || cancels["never"] != 5 || venues[1].state("1") != "cancelled" {
			t.Errorf("%v, %s", cancels, venues[1].state("1"))
		}
	})
}

// TestOtherProtocolMeanwhile: another protocol uses the id during the tries; all holds are
// cancelled at once.
func TestOtherProtocolMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hotel := newVenue("hotel", 1)
		hotel.bad = slowTry(time.Second)
		r, _, _ := quiet(t, nil, hotel)
		var err error
		var work sync.WaitGroup
		work.Go(func() { _, err = r.run(t.Context(), "1", hotel) })
		synctest.Wait()
		ok(t, r.coordinator.Begin(t.Context(), "1", "saga:order", record("begin", "", By{})))
		work.Wait()
		wantKind(t, err, interlock.Bug, ErrMismatch)
		if is := hotel.state("1"); is != "cancelled" {
			t.Errorf("it is %s", is)
		}
	})
}

// TestDecisionHasHalfTheMargin: Run waits for the journal's answer to the decision for half
// of the margin: the other half is for clocks that differ.
func TestDecisionHasHalfTheMargin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hotel := newVenue("hotel", 1)
		r, store, _ := quiet(t, &Options{Hold: time.Second, Margin: 100 * time.Millisecond}, hotel)
		store.Fail = func(n int, _ driver.Append) (before, after error) {
			if n == 1 {
				time.Sleep(80 * time.Millisecond)
				return errNetwork, nil
			}
			return nil, nil
		}
		o, err := r.run(t.Context(), "1", hotel)
		if wantKind(t, err, interlock.Definite, ErrCancelled); o.Decision != Cancel {
			t.Errorf("%+v", o)
		}
	})
}

// TestStrangeRecords: every reader reports a transaction of a newer version, and does not
// change it.
func TestStrangeRecords(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, _, failed := quiet(t, nil)
		ok(t, r.coordinator.Begin(t.Context(), "1", "tcc:booking", record(recordDecide, "cancel", deciding{}), journal.Entry{Kind: "later"}))
		o := NewOperator(r.coordinator.Journal())
		errs := map[string]error{"look": txntest.Second(r.Look(t.Context(), "1")), "retry": o.Retry(t.Context(), "1", "", somebody)}
		for _, err := range o.List(t.Context(), Filter{Unfinished: true}) {
			errs["list"] = err
		}
		r.serve(t, 1)
		errs["drive"] = failed.all()
		for what, err := range errs {
			if err == nil || interlock.Kind(err) != interlock.Bug || !strings.Contains(err.Error(), "newer version") {
				t.Errorf("%s: %v", what, err)
			}
		}
		same(t, "records", txntest.Records(t, r.store.Journal, "1"), "decide:cancel", "later:")
	})
}

// TestNothingFails: a coordinator reports no failure of transactions that end, nor of one
// that waits for an operator, in any process.
func TestNothingFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hotel, flight := newVenue("hotel", 3), newVenue("flight", 1)
		hotel.bad = func(c branch.Call) (before, after error) {
			if c.Transaction == "3" {
				return stubborn(c)
			}
			return nil, nil
		}
		r, _, failed := quiet(t, nil, hotel, flight)
		r.serve(t, 1)
		_, err := r.run(t.Context(), "1", hotel, flight)
		ok(t, err)
		_, _ = r.run(t.Context(), "2", hotel, flight)
		_, err = r.run(t.Context(), "3", hotel)
		ok(t, err)
		time.Sleep(time.Hour)
		if err := failed.all(); err != nil {
			t.Error(err)
		}
	})
}

// TestOneWaitsForItself: the repeated calls of one branch do not call another one that set
// its own time.
func TestOneWaitsForItself(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hotel, flight := newVenue("hotel", 1), newVenue("flight", 1)
		var asked atomic.Int64
		hotel.bad = func(c branch.Call) (before, after error) {
			if c.Operation != branch.Confirm {
				return nil, nil
			}
			asked.Add(1)
			return branch.InProgress(time.Hour), nil
		}
		flight.bad = func(c branch.Call) (before, after error) {
			if c.Operation != branch.Confirm {
				return nil, nil
			}
			return errNetwork, nil
		}
		r, _, _ := quiet(t, nil, hotel, flight)
		r.serve(t, 1)
		_, err := r.run(t.Context(), "1", hotel, flight)
		ok(t, err)
		time.Sleep(30 * time.Minute)
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times in half of its hour", n)
		}
	})
}

// patient confirms only after its time.
type patient struct{ wide }

func (patient) Confirm(ctx context.Context, _ string, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestStoppedCallIsNoFailure: stopping ends running calls; no hook reports them as
// failed.
func TestStoppedCallIsNoFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := &ear{}
		r, _, _ := quiet(t, &Options{Hooks: e.hooks(), Timeout: time.Hour})
		d := Define("patient", Resource[string, string](patient{}))
		r.handles["patient"] = d.of
		r.serve(t, 1)
		_, err := r.Run(t.Context(), "booking", "1", d.Try("x"))
		ok(t, err)
		synctest.Wait()
		r.stop()
		same(t, "told", e.heard(), "1 booking: confirm: ")
	})
}
