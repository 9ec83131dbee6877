package tcc

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestRunAgain: a second Run of an id returns the decision of the first, and tries nothing.
func TestRunAgain(t *testing.T) {
	atBoth(t, 2, 1, func(t *testing.T, hotel, flight *venue) {
		r := serve(t, nil, 1, nil, hotel, flight)
		for range 2 {
			o, err := r.run(t.Context(), "1", hotel, flight)
			ok(t, err)
			if h, err := hotel.define().Try("seat").OutputOf(o); h != "hold of seat" || err != nil {
				t.Errorf("%q, %v", h, err)
			}
		}
		for range 2 {
			_, err := r.run(t.Context(), "2", hotel, flight)
			wantKind(t, err, interlock.Definite, ErrCancelled)
		}
		if n := hotel.called("1/hotel/try") + hotel.called("2/hotel/try"); n > 2 {
			t.Errorf("%d tries", n)
		}
	})
}

// TestRunsAtOnce: many Runs of one id have one decision, even if one of them gets no answer
// and would have given up.
func TestRunsAtOnce(t *testing.T) {
	atBoth(t, 1, 1, func(t *testing.T, hotel, flight *venue) {
		r := serve(t, nil, 1, &Options{Retry: Policy{Attempts: 1}}, hotel, flight)
		var mu sync.Mutex
		calls := 0
		flight.bad = func(c branch.Call) (before, after error) {
			mu.Lock()
			calls++
			n := calls
			mu.Unlock()
			if c.Operation == branch.Try && n%2 == 0 {
				return nil, errNetwork
			}
			time.Sleep(time.Duration(n%5) * time.Millisecond)
			return nil, nil
		}
		for _, id := range []string{"1", "2", "3"} {
			var work sync.WaitGroup
			var ends []Decision
			for range 8 {
				work.Go(func() {
					o, _ := r.run(context.Background(), id, hotel, flight)
					mu.Lock()
					defer mu.Unlock()
					ends = append(ends, o.Decision)
				})
			}
			work.Wait()
			if ends = slices.Compact(ends); len(ends) != 1 || ends[0] == "" {
				t.Errorf("%s: %v", id, ends)
			}
			_, _ = r.Wait(t.Context(), id)
			time.Sleep(time.Minute)
			if h, f := hotel.state(id), flight.state(id); (h == "confirmed") != (f == "confirmed") || h == "held" || f == "held" {
				t.Errorf("%s: %s, %s", id, h, f)
			}
		}
		hotel.rules(t)
		flight.rules(t)
	})
}

// TestMismatch: an id that another transaction uses is refused, without an effect.
func TestMismatch(t *testing.T) {
	atBoth(t, 9, 9, func(t *testing.T, hotel, flight *venue) {
		r := serve(t, nil, 1, nil, hotel, flight)
		h, f := hotel.define(), flight.define()
		ctx := t.Context()
		ok(t, txntest.Second(r.Run(ctx, "booking", "1", h.Try("seat"))))
		ok(t, txntest.Second(r.Run(ctx, "booking", "3", h.Try("seat"), h.Try("seat").As("other"))))
		ok(t, r.coordinator.Begin(ctx, "2", "saga:order", record("begin", "", By{})))
		for name, err := range map[string]error{
			"type":     txntest.Second(r.Run(ctx, "other", "1", h.Try("seat"))),
			"request":  txntest.Second(r.Run(ctx, "booking", "1", h.Try("bed"))),
			"resource": txntest.Second(r.Run(ctx, "booking", "1", f.Try("seat").As("hotel"))),
			"name":     txntest.Second(r.Run(ctx, "booking", "1", h.Try("seat").As("other"))),
			"more":     txntest.Second(r.Run(ctx, "booking", "1", h.Try("seat"), f.Try("seat"))),
			"fewer":    txntest.Second(r.Run(ctx, "booking", "3", h.Try("seat"))),
			"protocol": txntest.Second(r.Run(ctx, "booking", "2", h.Try("seat"))),
			"decide":   txntest.Second(r.Decide(ctx, "2", "hotel")),
			"look":     txntest.Second(r.Look(ctx, "2")),
		} {
			wantKind(t, err, interlock.Bug, ErrMismatch)
			if t.Failed() {
				t.Fatal(name)
			}
			if why := differences[name]; !strings.Contains(err.Error(), why) {
				t.Errorf("%s: %v", name, err)
			}
		}
		txntest.Equal(t, "held for nothing", flight.used(), 0)
	})
}

// differences are the errors of running another transaction under an id.
var differences = map[string]string{"type": `run as a "booking", not as a "other"`, "name": `without branch "other"`, "more": `without branch "flight"`,
	"request": `another request for it`, "fewer": "run with 2 branches, not with 1", "protocol": `it is a "saga:order"`}

// TestDecidedMeanwhile: another process decides during the tries. The holds that its decision does
// not cover are cancelled at once, although the journal does not name them.
func TestDecidedMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		decide        func(ctx context.Context, r *rig, hotel *venue) error
		kind          interlock.ErrorKind
		err           error
		hotel, flight string // the holds afterwards
	}{
		"another transaction": {func(ctx context.Context, r *rig, hotel *venue) error {
			return txntest.Second(r.run(ctx, "1", hotel))
		}, interlock.Bug, ErrMismatch, "confirmed", "cancelled"},
		"on request of a participant": {func(ctx context.Context, r *rig, _ *venue) error {
			return txntest.Second(r.Decide(ctx, "1", "hotel"))
		}, interlock.Definite, ErrCancelled, "cancelled", "cancelled"},
		"another protocol": {func(ctx context.Context, r *rig, _ *venue) error {
			return r.coordinator.Begin(ctx, "1", "saga:order", record("begin", "", By{}))
		}, interlock.Bug, ErrMismatch, "cancelled", "cancelled"},
	} {
		runBubble(t, name, func(t *testing.T) {
			hotel, flight := newVenue("hotel", 9), newVenue("flight", 9)
			flight.bad = slowTry(time.Second)
			r := serve(t, nil, 1, nil, hotel, flight)
			outcome := make(chan error, 1)
			go func() { outcome <- txntest.Second(r.run(context.Background(), "1", hotel, flight)) }()
			synctest.Wait()
			ok(t, c.decide(t.Context(), r, hotel))
			wantKind(t, <-outcome, c.kind, c.err)
			if synctest.Wait(); hotel.state("1") != c.hotel || flight.state("1") != c.flight {
				t.Errorf("%s, %s", hotel.state("1"), flight.state("1"))
			}
			hotel.rules(t)
		})
	}
}

// TestLostDecision: an append whose answer is lost is no failure: Run finds out its decision.
// If the append was never made, Run decides again.
func TestLostDecision(t *testing.T) {
	for name, c := range map[string]struct {
		before, after error
		want          Decision
	}{"the answer": {nil, errNetwork, Confirm}, "the request": {errNetwork, nil, Cancel}} {
		bubble(t, func(t *testing.T) {
			store := txntest.NewJournal()
			store.Fail = func(_ int, a driver.Append) (before, after error) {
				if a.Epoch == 0 && a.Records[len(a.Records)-1].Step == string(Confirm) {
					return c.before, c.after
				}
				return nil, nil
			}
			hotel := newVenue("hotel", 1)
			r := serve(t, store, 1, nil, hotel)
			o, err := r.run(t.Context(), "1", hotel)
			if o.Decision != c.want || (err == nil) != (c.want == Confirm) {
				t.Errorf("%s was lost: %+v, %v", name, o, err)
			}
			if c.want == Confirm { // which is carried out at once, not only by a later poll
				ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
				defer stop()
				ok(t, txntest.Second(r.Wait(ctx, "1")))
			}
			time.Sleep(2 * time.Minute)
			o, _ = r.Wait(t.Context(), "1")
			if got := hotel.state("1"); (got == "confirmed") != (c.want == Confirm) || got == "held" || o.Decision != c.want {
				t.Errorf("%s was lost: %s, %+v", name, got, o)
			}
		})
	}
}

// TestTriesTellUntil: only a try's call has the time until which to hold.
func TestTriesTellUntil(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
		until := map[branch.Operation]time.Time{}
		hotel.bad = func(c branch.Call) (before, after error) {
			until[c.Operation] = c.Until
			return nil, nil
		}
		r := serve(t, nil, 1, &Options{Hold: time.Minute}, hotel)
		want := time.Now().Add(time.Minute).Truncate(time.Millisecond)
		ok(t, txntest.Second(r.run(t.Context(), "1", hotel)))
		ok(t, txntest.Second(r.Wait(t.Context(), "1")))
		if !until[branch.Try].Equal(want) || !until[branch.Confirm].IsZero() {
			t.Errorf("%v, want %v", until, want)
		}
	})
}

// TestPanickingTarget: a panic of the user's function while the coordinator drives ends
// neither the process nor the transaction.
func TestPanickingTarget(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
		r := idle(t, nil, nil, nil)
		r.handles["hotel"] = hotel.define().Target(func(string) string { panic("no such host") }).of
		r.serve(t, 1)
		ok(t, txntest.Second(r.run(t.Context(), "1", hotel)))
		if o, err := r.Wait(t.Context(), "1"); o.State != Confirmed || err != nil {
			t.Errorf("%+v, %v", o, err)
		}
	})
}

// TestUnknownDecision: while the journal does not answer, no outcome is returned, and
// nothing is confirmed or cancelled; another run decides, with the existing holds.
func TestUnknownDecision(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := txntest.NewJournal()
		store.Fail = func(int, driver.Append) (before, after error) { return errNetwork, nil }
		hotel := newVenue("hotel", 1)
		r := idle(t, store, nil, nil, hotel)
		_, err := r.run(t.Context(), "1", hotel)
		wantKind(t, err, interlock.Uncertain, errNetwork)
		if got := hotel.state("1"); got != "held" || len(hotel.post.keys) != 1 {
			t.Errorf("it is %s after %v", got, hotel.post.keys)
		}
		_, err = r.Look(t.Context(), "1")
		wantKind(t, err, interlock.Definite, ErrNone)
		_, err = r.Wait(t.Context(), "1")
		wantKind(t, err, interlock.Definite, ErrNone)
		store.Fail = nil
		o, err := r.run(t.Context(), "1", hotel)
		if o.Decision != Confirm || err != nil {
			t.Errorf("%+v, %v", o, err)
		}
	})
}

// TestCallerLeaves: the end of the caller's context durably cancels an undecided
// transaction, and is the cause.
func TestCallerLeaves(t *testing.T) {
	atBoth(t, 1, 1, func(t *testing.T, hotel, flight *venue) {
		flight.bad = slowTry(time.Second)
		r := serve(t, nil, 1, nil, hotel, flight)
		ctx, leave := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer leave()
		_, err := r.run(ctx, "1", hotel, flight)
		wantKind(t, err, interlock.Definite, ErrCancelled)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		_, _ = r.Wait(t.Context(), "1")
		if h, f := hotel.state("1"), flight.state("1"); h != "cancelled" || f != "cancelled" {
			t.Errorf("%s, %s", h, f)
		}
	})
}

// bomb panics.
type bomb struct{}

func (bomb) Try(context.Context, string, time.Time) (string, error) { panic("boom") }
func (bomb) Confirm(context.Context, string, string) error          { panic("boom") }
func (bomb) Cancel(_ context.Context, _ string, h *string) error {
	if h != nil {
		panic("it holds nothing that is known")
	}
	return nil
}

// leaving is a resource whose tries end their goroutine, as a test's FailNow does.
type leaving struct{ bomb }

func (leaving) Try(context.Context, string, time.Time) (string, error) {
	runtime.Goexit()
	return "", nil
}

// TestPanic: a try that panics, or ends its goroutine, has failed with an unknown outcome, and the
// transaction is cancelled.
func TestPanic(t *testing.T) {
	for want, resource := range map[string]Resource[string, string]{"boom": bomb{}, failure.ErrNoReturn.Error(): leaving{}} {
		bubble(t, func(t *testing.T) {
			r, d := serveOne(t, nil, resource)
			_, err := r.Run(t.Context(), "booking", "1", d.Try("x"))
			if wantKind(t, err, interlock.Definite, ErrCancelled); !strings.Contains(err.Error(), want) {
				t.Errorf("%v", err)
			}
			ctx, end := context.WithTimeout(t.Context(), time.Minute)
			defer end()
			o, _ := r.Wait(ctx, "1")
			if _, err := d.Try("x").OutputOf(o); o.State != Cancelled || !errors.Is(err, ErrNoOutput) {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
}

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

// quiet returns an engine over a silent journal, which serves nothing, and the errors of its coordinator.
func quiet(t *testing.T, o *Options, venues ...*venue) (*rig, *silent, *txntest.Events[error]) {
	t.Helper()
	store, failed := &silent{watched: txntest.NewJournal()}, &txntest.Events[error]{}
	hooks := &observe.Coordinator{Failed: func(e observe.CoordinatorFailed) { failed.Add(e.Err) }}
	m := build(t, store, o, &coordinator.Options{Hooks: hooks}, venues...)
	return &rig{Engine: m, store: store.watched, stop: func() {}}, store, failed
}

// TestUnreadJournal: an engine that cannot read the decision tries nothing, and reports the
// transaction neither as confirmed nor as missing.
func TestUnreadJournal(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
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
		txntest.Equal(t, "appends", r.store.Appends(), 0)
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
		atHotel(t, 1, func(t *testing.T, hotel *venue) {
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
			if got := hotel.state("1"); got != want {
				t.Errorf("silent for %v: it is %s", silence, got)
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

// TestDecisionHasHalfTheMargin: Run waits for the journal's answer to the decision for half
// of the margin: the other half is for clocks that differ.
func TestDecisionHasHalfTheMargin(t *testing.T) {
	atHotel(t, 1, func(t *testing.T, hotel *venue) {
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
		synctest.Wait()
		errs["drive"] = errors.Join(failed.All()...)
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
	atBoth(t, 3, 1, func(t *testing.T, hotel, flight *venue) {
		hotel.bad = func(c branch.Call) (before, after error) {
			if c.Transaction == "3" {
				return stubborn(c)
			}
			return nil, nil
		}
		r, _, failed := quiet(t, nil, hotel, flight)
		r.serve(t, 1)
		ok(t, txntest.Second(r.run(t.Context(), "1", hotel, flight)))
		_, _ = r.run(t.Context(), "2", hotel, flight)
		ok(t, txntest.Second(r.run(t.Context(), "3", hotel)))
		time.Sleep(time.Hour)
		if err := errors.Join(failed.All()...); err != nil {
			t.Error(err)
		}
	})
}

// TestOneWaitsForItself: the repeated calls of one branch do not call another one that set
// its own time.
func TestOneWaitsForItself(t *testing.T) {
	atBoth(t, 1, 1, func(t *testing.T, hotel, flight *venue) {
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
		ok(t, txntest.Second(r.run(t.Context(), "1", hotel, flight)))
		time.Sleep(30 * time.Minute)
		txntest.Equal(t, "calls in half of its hour", asked.Load(), 1)
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
		r, d := serveOne(t, &Options{Hooks: e.hooks(), Timeout: time.Hour}, Resource[string, string](patient{}))
		ok(t, txntest.Second(r.Run(t.Context(), "booking", "1", d.Try("x"))))
		synctest.Wait()
		r.stop()
		same(t, "told", e.heard(), "1 booking: confirm: ")
	})
}
