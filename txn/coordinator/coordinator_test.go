package coordinator

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

var errDown = errors.New("down")

// TestBeginAndFind: a transaction that begins here is driven at once, and one of another process
// within a poll. One of a former owner is driven at take-over, whatever its due time.
func TestBeginAndFind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idle(t, nil, nil, succeed)
		r.begin(t, "before", "call:x")
		log, _, err := r.Journal().Open(t.Context(), "before")
		ok(t, err)
		ok(t, log.Append(t.Context(), time.Now().Add(24*time.Hour), journal.Entry{Kind: "later"}))
		r.serve(t, 1)
		r.wantEnded(t, "before")
		r.begin(t, "here", "call:x")
		r.wantEnded(t, "here")
		other := idle(t, r.store, nil, succeed)
		other.begin(t, "elsewhere", "call:x")
		ok(t, other.Await(t.Context(), "elsewhere", func(context.Context) (bool, error) { return r.ended(t, "elsewhere"), nil }))
		wantKind(t, r.Begin(t.Context(), "here", "call:x", journal.Entry{Kind: "begin"}), interlock.Definite, journal.ErrExists)
	})
}

// TestNudge: Nudge drives a transaction that was begun in the user's transaction, once. It
// ignores an unknown one, and one that has ended.
func TestNudge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var called atomic.Int64
		r := idle(t, nil, &Options{Poll: time.Hour}, func(context.Context, string) error { called.Add(1); return nil })
		r.serve(t, 1)
		ok(t, txntest.Second(r.Journal().Begin(t.Context(), "1", "call:x", time.Now(), journal.Entry{Kind: "begin"})))
		r.Nudge("nothing")
		for range 2 {
			r.Nudge("1")
			if synctest.Wait(); !r.ended(t, "1") || called.Load() != 1 || r.calls.driven("1") != 1 || r.holding() != 0 {
				t.Errorf("called %d times, driven %d times, %d are held", called.Load(), r.calls.driven("1"), r.holding())
			}
		}
	})
}

// TestTargets: a target that hangs takes its own places, and neither those of others nor
// the slots. It never has more concurrent calls than places.
func TestTargets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var inside, most atomic.Int64
		hang := make(chan struct{})
		r := idle(t, nil, &Options{PerTarget: 3, Concurrency: 2}, func(ctx context.Context, id string) error {
			if !strings.HasPrefix(id, "hang") {
				return nil
			}
			most.Store(max(most.Load(), inside.Add(1)))
			defer inside.Add(-1)
			<-hang
			return nil
		})
		r.serve(t, 1)
		for i := range 20 {
			r.begin(t, fmt.Sprint("hang ", i), "call:sick")
			r.begin(t, fmt.Sprint("well ", i), "call:well")
		}
		synctest.Wait()
		for i := range 20 {
			if !r.ended(t, fmt.Sprint("well ", i)) {
				t.Fatal("a target is kept waiting by another")
			}
		}
		close(hang)
		if synctest.Wait(); most.Load() != 3 {
			t.Errorf("%d calls at once", most.Load())
		}
		for i := range 20 {
			if !r.ended(t, fmt.Sprint("hang ", i)) {
				t.Fatal("not driven")
			}
		}
	})
}

// TestHealing: once a sick target answers, all waiting transactions call it again, hours
// early. A transaction that fails alone does not call it more often.
func TestHealing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var down atomic.Bool
		var poisoned atomic.Int64
		r := idle(t, nil, nil, func(ctx context.Context, id string) error {
			if id == "poison" {
				poisoned.Add(1)
			}
			if down.Load() || id == "poison" {
				return errDown
			}
			return nil
		})
		r.serveBegun(t, "poison", "call:x")
		synctest.Wait()
		for i := range 20 {
			r.begin(t, fmt.Sprint("well ", i), "call:x")
			synctest.Wait()
		}
		txntest.Equal(t, "calls of the poisoned one", poisoned.Load(), 1)
		down.Store(true)
		for i := range 50 {
			r.begin(t, fmt.Sprint("stuck ", i), "call:x")
		}
		synctest.Wait()
		down.Store(false)
		r.begin(t, "first", "call:x")
		synctest.Wait()
		for i := range 50 {
			if !r.ended(t, fmt.Sprint("stuck ", i)) {
				t.Fatal("it waits though its target is well")
			}
		}
	})
}

// TestMoved: a transaction that waits in memory is read again after an append of another
// process, and makes no call by its outdated state.
func TestMoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var tried atomic.Int64
		r := idle(t, nil, nil, func(context.Context, string) error {
			if tried.Add(1) == 1 {
				return errDown
			}
			return nil
		})
		r.serveBegun(t, "1", "call:x")
		synctest.Wait()
		log, _, err := r.Journal().Open(t.Context(), "1")
		ok(t, err)
		ok(t, log.Append(t.Context(), time.Now(), journal.Entry{Kind: "retry"}))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !r.ended(t, "1") || r.calls.driven("1") != 2 || tried.Load() != 2 {
			t.Errorf("driven %d times, with %d calls", r.calls.driven("1"), tried.Load())
		}
	})
}

// TestPausedOwner: a paused owner calls nothing once its claim has expired, and appends
// nothing once another has entered, which finishes the transactions.
func TestPausedOwner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var called txntest.Events[string]
		hang := make(chan struct{})
		r := idle(t, nil, nil, func(_ context.Context, id string) error { called.Add("old " + id); <-hang; return nil })
		r.serveBegun(t, "1", "call:x")
		synctest.Wait()
		r.claim.Expired.Store(true) // but no context has ended
		r.begin(t, "2", "call:x")
		synctest.Wait()
		next := idle(t, r.store, nil, func(_ context.Context, id string) error { called.Add("new " + id); return nil })
		next.serve(t, 2)
		close(hang)
		wantKind(t, <-r.served, interlock.Definite, interlock.ErrExpired)
		if got := strings.Join(called.All(), ", "); got != "old 1, new 1, new 2" && got != "old 1, new 2, new 1" {
			t.Error(got)
		}
		_, records, err := r.store.Read(t.Context(), "1", 0)
		ok(t, err)
		if last := records[len(records)-1]; last.Epoch != next.claim.Token() {
			t.Errorf("%+v", last)
		}
	})
}

// TestQueuedCall: a call that waits for a place of its target is not made if the claim
// expires meanwhile.
func TestQueuedCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hang := make(chan struct{})
		var called atomic.Int64
		r := idle(t, nil, &Options{PerTarget: 1}, func(context.Context, string) error { called.Add(1); <-hang; return nil })
		r.serveBegun(t, "1", "call:x")
		r.begin(t, "2", "call:x")
		synctest.Wait()
		r.claim.Expired.Store(true)
		close(hang)
		if synctest.Wait(); called.Load() != 1 {
			t.Errorf("%d calls", called.Load())
		}
	})
}

// TestHeld: transactions beyond the memory bound are driven as others end, also those that a
// former owner has claimed.
func TestHeld(t *testing.T) {
	for _, claimed := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			hang := make(chan struct{})
			r := idle(t, nil, &Options{Held: 10, PerTarget: 1000}, func(context.Context, string) error { <-hang; return nil })
			if !claimed {
				r.serve(t, 2)
			}
			other := idle(t, r.store, nil, nil)
			for i := range 250 {
				other.begin(t, fmt.Sprint(i), "call:x")
			}
			if claimed {
				former, err := r.Journal().Own(t.Context(), grant(1), 0)
				ok(t, err)
				for left := 250; left > 0; {
					heads, err := former.Claim(t.Context(), time.Now(), time.Now().Add(time.Minute), 100)
					ok(t, err)
					left -= len(heads)
				}
				r.serve(t, 2)
			}
			time.Sleep(5 * time.Second)
			if synctest.Wait(); r.holding() != 10 {
				t.Errorf("%d in memory", r.holding())
			}
			close(hang)
			for i := range 250 {
				ok(t, r.Await(t.Context(), fmt.Sprint(i), func(context.Context) (bool, error) { return r.ended(t, fmt.Sprint(i)), nil }))
			}
		})
	}
}

// TestCallNamesTheTimeout in every error that is not the target's answer: gRPC's, for example, is no error of the
// context.
func TestCallNamesTheTimeout(t *testing.T) {
	const text = "the call took longer than 1ms"
	canceled := errors.New("rpc error: code = Canceled desc = context canceled")
	ctx, cancel := WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	<-ctx.Done()
	for _, c := range []struct {
		err  error
		want string
	}{{nil, "<nil>"}, {canceled, text + ": " + canceled.Error()}, {branch.Retry(canceled), text + ": " + canceled.Error()},
		{ctx.Err(), text + ": context deadline exceeded"}, {context.Cause(ctx), text}, {branch.Fail(errDown), errDown.Error()}} {
		if got := Call(ctx, func(context.Context) error { return c.err }); fmt.Sprint(got) != c.want || !errors.Is(got, c.err) {
			t.Errorf("%v: %v, want %s", c.err, got, c.want)
		}
	}
	if err := Call(t.Context(), func(context.Context) error { return canceled }); err != canceled {
		t.Errorf("before the end: %v", err)
	}
}

// TestRound: calls are concurrent, with the call in their contexts; each has its own
// end.
func TestRound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var got []error
		var mu sync.Mutex
		calls := map[string]branch.Call{}
		note := func(ctx context.Context) {
			mu.Lock()
			defer mu.Unlock()
			c := branch.From(ctx)
			calls[c.Branch] = c
		}
		r := idle(t, nil, nil, nil)
		ok(t, r.Handle("round", protocolFunc(func(t *Turn) error {
			task := func(name string, timeout time.Duration, do func(ctx context.Context) error) Task {
				return Task{Target: name, Timeout: timeout, Call: branch.Call{Transaction: t.ID(), Branch: name}, Do: func(ctx context.Context) error { note(ctx); return do(ctx) }}
			}
			first := make(chan struct{})
			got = t.Round(
				task("waits", 0, func(context.Context) error { <-first; return nil }),
				task("frees", 0, func(context.Context) error { close(first); return branch.Fail(errDown) }),
				task("panics", 0, func(context.Context) error { panic("ouch") }),
				task("slow", time.Second, func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }),
				task("beats", time.Second, func(ctx context.Context) error {
					for range 5 {
						time.Sleep(900 * time.Millisecond)
						if !Heartbeat(ctx) {
							return errDown
						}
					}
					time.Sleep(1100 * time.Millisecond)
					if Heartbeat(ctx) || ctx.Err() == nil {
						return errDown
					}
					return branch.InProgress(time.Hour)
				}),
				task("stops", time.Second, func(ctx context.Context) error { <-ctx.Done(); return branch.Retry(fmt.Errorf("ask: %w", ctx.Err())) }))
			return t.End(journal.Entry{Kind: "end"})
		})))
		r.serve(t, 1)
		start := time.Now().Truncate(time.Millisecond)
		r.begin(t, "1", "round:x")
		ok(t, r.Await(t.Context(), "1", func(context.Context) (bool, error) { return r.ended(t, "1"), nil }))
		var classes []string
		for _, err := range got {
			class, _ := branch.ClassOf(err)
			classes = append(classes, fmt.Sprint(err == nil, " ", class))
		}
		if s := strings.Join(classes, ", "); s != "true unknown, false fail, false unknown, false unknown, false ongoing, false retry" {
			t.Error(s)
		}
		if !errors.Is(got[3], context.DeadlineExceeded) || !strings.Contains(got[2].Error(), "ouch") {
			t.Errorf("%v, %v", got[3], got[2])
		}
		if s := got[5].Error(); !errors.Is(got[5], context.Canceled) || s != "the call took longer than 1s: ask: context canceled" {
			t.Error(s)
		}
		if c := calls["slow"]; c.Epoch != r.claim.Token() || !c.Begun.Equal(start) || c.Deadline.Sub(start) < time.Second || c.Deadline.Sub(start) > 1001*time.Millisecond {
			t.Errorf("%+v", c)
		}
		if Heartbeat(context.Background()) {
			t.Error("a beat of nothing")
		}
	})
}

// TestDelay: delays grow to their bound, and are random. If the target is processing the
// call, its own delay is used.
func TestDelay(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		class    branch.Class
		after    time.Duration
		attempts int
		random   float64
		want     time.Duration
	}{
		{branch.ClassRetry, 0, 1, 0.5, 40 * ms}, {branch.ClassUnknown, 0, 3, 0.5, 160 * ms}, {branch.ClassUnknown, 0, 100, 0.5, 500 * ms},
		{branch.ClassUnknown, 0, 1, 0, 10 * ms}, {branch.ClassInProgress, 3 * time.Hour, 1, 0.5, 3 * time.Hour}, {branch.ClassInProgress, -time.Second, 1, 0, 10 * ms},
		{branch.ClassUnknown, 90 * ms, 1, 0.5, 90 * ms}, {branch.ClassRetry, 90 * ms, 3, 0.5, 160 * ms}, {branch.ClassUnknown, 3 * time.Hour, 1, 0.5, time.Second},
	} {
		if got := Delay(80*ms, time.Second, c.class, c.after, c.attempts, c.random); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// protocolFunc is a protocol.
type protocolFunc func(t *Turn) error

func (f protocolFunc) Drive(t *Turn) error { return f(t) }

// TestRecheckKeepsDue: an append keeps a due time that is at least half of Recheck away. A turn that
// takes longer is the only one of its transaction.
func TestRecheckKeepsDue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idle(t, nil, &Options{Recheck: time.Minute}, nil)
		var dues []time.Duration // since the begin
		ok(t, r.Handle("slow", protocolFunc(func(t *Turn) error {
			begun := time.Now()
			for _, wait := range []time.Duration{0, 30 * time.Second, time.Second, 10 * time.Minute} {
				time.Sleep(wait)
				if err := t.Append(time.Time{}, journal.Entry{Kind: "x"}); err != nil {
					return err
				}
				dues = append(dues, t.Head().Due.Sub(begun))
			}
			return t.End(journal.Entry{Kind: "end"})
		})))
		r.serveBegun(t, "1", "slow:x")
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := []time.Duration{time.Minute, time.Minute, 91 * time.Second, 691 * time.Second}; !slices.Equal(dues, want) || !r.ended(t, "1") {
			t.Errorf("due at %v, want %v", dues, want)
		}
	})
}

// TestFailedDrive: a transaction that cannot be driven is reported, and found again when
// it is due.
func TestFailedDrive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told txntest.Events[string]
		hooks := &observe.Coordinator{
			Failed:  func(e observe.CoordinatorFailed) { told.Add(e.Transaction + ": " + e.Err.Error()) },
			Foreign: func(e observe.CoordinatorForeign) { told.Add(e.Transaction + ": nobody knows " + e.Type) },
		}
		r := idle(t, nil, &Options{Recheck: time.Minute, Hooks: hooks}, nil)
		repaired := r.handleBroken(t, "odd")
		r.serveBegun(t, "1", "odd:x")
		r.begin(t, "2", "none:x")
		synctest.Wait()
		text := strings.Join(told.All(), "; ")
		if strings.Count(text, ";") != 1 || !strings.Contains(text, `2: nobody knows none:x`) {
			t.Fatal(text)
		}
		repaired.Store(true)
		time.Sleep(2 * time.Minute)
		r.wantEnded(t, "1")
	})
}

// TestSlotAfterAFailure: a turn whose claim expires while it waits after a failure of the store keeps
// no slot. Otherwise Options.Concurrency of them stop the coordinator.
func TestSlotAfterAFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idle(t, nil, &Options{Concurrency: 1}, nil)
		repaired := r.handleBroken(t, "odd")
		r.serveBegun(t, "1", "odd:x")
		synctest.Wait() // it waits
		r.claim.Expired.Store(true)
		wantKind(t, <-r.served, interlock.Definite, interlock.ErrExpired)
		repaired.Store(true)
		r.serve(t, 2)
		r.wantEnded(t, "1")
	})
}

// TestMisuse: each mistake has an error with the next step.
func TestMisuse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, o := range []Options{{Concurrency: -1}, {PerTarget: -1}, {Held: -1}} {
			_, err := New(nil, &o)
			wantKind(t, err, interlock.Bug, nil)
		}
		r := idle(t, nil, nil, nil)
		nothing := protocolFunc(func(*Turn) error { return nil })
		for _, name := range []string{"", "a:b", "call"} {
			wantKind(t, r.Handle(name, nothing), interlock.Bug, nil)
		}
		wantKind(t, r.Handle("new", nil), interlock.Bug, nil)
		wantKind(t, r.Serve(t.Context(), nil, 0), interlock.Bug, nil)
		wantKind(t, r.Run(t.Context(), nil), interlock.Bug, nil)
		r.serve(t, 2)
		wantKind(t, r.Handle("new", nothing), interlock.Bug, nil)
		wantKind(t, r.Serve(t.Context(), r.claim, 0), interlock.Bug, nil)
		wantKind(t, r.Serve(t.Context(), r.claim, 1), interlock.Bug, nil)
		wantKind(t, idle(t, r.store, nil, nil).Serve(t.Context(), grant(1), 0), interlock.Definite, interlock.ErrStaleToken)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantKind(t, r.Await(ctx, "1", func(context.Context) (bool, error) { return false, nil }), interlock.Uncertain, context.DeadlineExceeded)
		definite := &interlock.Error{Op: "x", Kind: interlock.Definite, Err: errDown}
		wantKind(t, r.Await(t.Context(), "1", func(context.Context) (bool, error) { return false, definite }), interlock.Definite, errDown)
	})
}

// TestAlongside: concurrent registrations are all kept.
func TestAlongside(t *testing.T) {
	r := idle(t, nil, nil, nil)
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() { r.Alongside(func(context.Context) error { return nil }) })
	}
	work.Wait()
	txntest.Equal(t, "registered", len(r.Beside()), 8)
}

// TestExhausted: the option bounds the take-overs, or not.
func TestExhausted(t *testing.T) {
	for most, want := range map[int]bool{2: true, 3: true, 4: false, -1: false} {
		turn := &Turn{server: &server{coordinator: &Coordinator{options: Options{TakeOvers: most}}}}
		if turn.Exhausted(3) != want {
			t.Errorf("of %d: %v", most, !want)
		}
	}
}

// TestTruncate: the journal stores the first bytes of an error, as text, and a sign that there was more.
func TestTruncate(t *testing.T) {
	for text, want := range map[string]string{"12345": "12345", "123456": "12345…", "1234é": "1234…", "\xff": "\uFFFD", "a\xffb\xffc": "a\uFFFDb…"} {
		if got := Truncate(text, 5); got != want {
			t.Errorf("%q is stored as %q", text, got)
		}
	}
}

// TestNudgeAtRest: an append while a transaction is about to rest is not missed.
func TestNudgeAtRest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idle(t, nil, &Options{Poll: time.Hour}, nil)
		ok(t, r.Handle("rest", protocolFunc(func(turn *Turn) error {
			if len(turn.Entries()) > 1 {
				return turn.End(journal.Entry{Kind: "end"})
			}
			log, _, err := r.Journal().Open(t.Context(), turn.ID())
			ok(t, err)
			ok(t, log.Append(t.Context(), time.Now().Add(24*time.Hour), journal.Entry{Kind: "help"}))
			r.Nudge(turn.ID())
			return nil
		})))
		r.serveBegun(t, "1", "rest:x")
		r.wantEnded(t, "1")
	})
}

// TestAppendRefused: after an append that another process's append refuses, the turn
// continues at once from the new state, without a nudge.
func TestAppendRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		failed := func(e observe.CoordinatorFailed) { t.Error(e.Err) }
		r := idle(t, nil, &Options{Poll: time.Hour, Hooks: &observe.Coordinator{Failed: failed}}, nil)
		ok(t, r.Handle("race", protocolFunc(func(turn *Turn) error {
			if len(turn.Entries()) == 1 {
				log, _, err := r.Journal().Open(t.Context(), turn.ID())
				ok(t, err)
				ok(t, log.Append(t.Context(), time.Now().Add(24*time.Hour), journal.Entry{Kind: "help"}))
			}
			return turn.End(journal.Entry{Kind: "end"})
		})))
		r.serveBegun(t, "1", "race:x")
		r.wantEnded(t, "1")
	})
}

// TestReserved: a transaction that is found during another try to begin it is driven
// nonetheless, and one that may have begun is looked up.
func TestReserved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idle(t, nil, &Options{Poll: time.Hour}, succeed)
		r.serve(t, 1)
		for id, err := range map[string]error{
			"found": journal.ErrExists,
			"lost":  &interlock.Error{Op: "append", Kind: interlock.Uncertain, Err: errDown},
		} {
			reserved := r.reserve(id)
			_, err2 := r.Journal().Begin(t.Context(), id, "call:x", time.Now().Add(time.Hour), journal.Entry{Kind: "begin"})
			ok(t, err2)
			if id == "found" {
				r.Nudge(id)
			}
			reserved.admit(nil, err, nil, time.Now())
			r.wantEnded(t, id)
		}
		r.reserve("none").admit(nil, errDown, nil, time.Now())
		time.Sleep(time.Minute) // it may arrive late
		if synctest.Wait(); r.holding() != 0 {
			t.Errorf("%d are held", r.holding())
		}
	})
}

func (c *Coordinator) holding() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.activeTurns
}

// waiting returns how many transactions wait to repeat a call of a target.
func (c *Coordinator) waiting(name string) int {
	g := c.acquireTarget(name)
	defer c.releaseTarget(g)
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}

// TestCrowd: transactions that wait for a target that hangs or is down do not take all
// the room: others are driven. All of them end once the target recovers, and no false
// failures are reported.
func TestCrowd(t *testing.T) {
	for _, way := range []string{"hangs", "is down"} {
		runBubble(t, way, func(t *testing.T) {
			var sick atomic.Bool
			sick.Store(true)
			hang := make(chan struct{})
			failed := func(e observe.CoordinatorFailed) { t.Errorf("%s: %v", e.Transaction, e.Err) }
			r := idle(t, nil, &Options{Held: 20, PerTarget: 2, Hooks: &observe.Coordinator{Failed: failed}}, func(_ context.Context, id string) error {
				switch {
				case !strings.HasPrefix(id, "sick") || !sick.Load():
				case way == "hangs":
					<-hang
				default:
					return errDown
				}
				return nil
			})
			r.serve(t, 1)
			other := idle(t, r.store, nil, nil)
			for i := range 500 {
				other.begin(t, fmt.Sprint("sick ", i), "call:sick")
			}
			time.Sleep(2 * time.Minute)
			for i := range 50 {
				other.begin(t, fmt.Sprint("well ", i), "call:well")
			}
			time.Sleep(2 * time.Minute) // each poll takes as many as there is room for, the earliest first
			for i := range 50 {
				if synctest.Wait(); !r.ended(t, fmt.Sprint("well ", i)) {
					t.Fatal("a target is kept waiting by another")
				}
			}
			if n := r.holding(); n > 20 {
				t.Errorf("%d in memory", n)
			}
			if n := r.waiting("call:sick"); way == "hangs" && n != 0 {
				t.Errorf("%d wait to repeat what they have not called", n)
			}
			sick.Store(false)
			close(hang)
			time.Sleep(2 * time.Hour)
			for i := range 500 {
				if !r.ended(t, fmt.Sprint("sick ", i)) {
					t.Fatal("forgotten")
				}
			}
		})
	}
}

// TestTargetsAreForgotten: few names of healthy targets without calls are kept, and those of
// failing ones are bounded, too.
func TestTargetsAreForgotten(t *testing.T) {
	for most, err := range map[int]error{idleTargets: nil, failingTargets: errDown} {
		bubble(t, func(t *testing.T) {
			r := idle(t, nil, nil, nil)
			ok(t, r.Handle("once", protocolFunc(func(turn *Turn) error {
				turn.Round(Task{Target: turn.ID(), Do: func(context.Context) error { return err }})
				return turn.End(journal.Entry{Kind: "end"})
			})))
			r.serve(t, 1)
			for i := range 2 * most {
				r.begin(t, fmt.Sprint(i), "once:x")
			}
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.targets) > most {
				t.Errorf("%d targets, at most %d", len(r.targets), most)
			}
		})
	}
}

// TestLoneFailures: the state of a sick target lasts from one call to the next, even if
// it is not used between them and many other targets are known.
func TestLoneFailures(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idle(t, nil, nil, succeed)
		ok(t, r.Handle("lone", protocolFunc(func(turn *Turn) error {
			for i := range idleTargets {
				turn.Round(Task{Target: fmt.Sprint(i), Do: func(context.Context) error { return nil }})
			}
			for range failingAfter {
				turn.Round(Task{Target: "call:x", Do: func(context.Context) error { return errDown }})
			}
			if !turn.Pause(time.Hour, "call:x") {
				return turn.Holds()
			}
			return turn.End(journal.Entry{Kind: "end"})
		})))
		r.serveBegun(t, "1", "lone:x")
		synctest.Wait()
		r.begin(t, "2", "call:x")
		r.wantEnded(t, "1")
	})
}

// TestFlapping: a target that answers one call in eight is not called repeatedly for all
// waiting transactions, while one transaction tries it once a minute.
func TestFlapping(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var calls atomic.Int64
		r := idle(t, nil, &Options{PerTarget: 1}, func(context.Context, string) error {
			if calls.Add(1)%8 != 0 {
				return errDown
			}
			return nil
		})
		r.serve(t, 1)
		const stuck, probes = 200, 24
		for i := range stuck {
			r.begin(t, fmt.Sprint("stuck ", i), "call:x")
			synctest.Wait()
		}
		before := calls.Load()
		for i := range probes {
			r.begin(t, fmt.Sprint("probe ", i), "call:x")
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		if n := calls.Load() - before; n > 3*probes {
			t.Errorf("%d calls more by %d who ask, while %d wait", n, probes, stuck)
		}
	})
}

// TestBeginTwiceElsewhere: a Nudge finds a transaction in another shard than that of its id's hash
// although its begin was repeated.
func TestBeginTwiceElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idleOf(t, 16, nil, nil, func(context.Context, string) error { return errDown })
		ctx, stop := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer stop()
		for shard := range 16 {
			if shard != r.Journal().ShardOf("1") {
				go func() { _ = r.Serve(ctx, grant(1), shard) }()
			}
		}
		synctest.Wait()
		r.begin(t, "1", "call:x")
		synctest.Wait()
		for range 20 {
			if err := r.Begin(t.Context(), "1", "call:x", journal.Entry{Kind: "begin"}); !errors.Is(err, journal.ErrExists) {
				t.Fatal(err)
			}
		}
		if s := r.server(r.shardOf("1")); s == nil || !s.drives("1") {
			t.Errorf("a Nudge goes to shard %d", r.shardOf("1"))
		}
	})
}

// TestGoexit: an action that ends its goroutine has an unknown outcome, alone and among
// others. A transaction whose protocol panics, or ends its goroutine, is found again when it is due.
func TestGoexit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told atomic.Value
		r := idle(t, nil, &Options{Hooks: &observe.Coordinator{Failed: func(e observe.CoordinatorFailed) { told.Store(e.Err) }}}, nil)
		exits := func(context.Context) error { runtime.Goexit(); return nil }
		ok(t, r.Handle("round", protocolFunc(func(turn *Turn) error {
			for _, err := range append(turn.Round(Task{Do: exits}), turn.Round(Task{Do: exits}, Task{Do: exits})...) {
				if class, _ := branch.ClassOf(err); class != branch.ClassUnknown || !errors.Is(err, failure.ErrNoReturn) {
					t.Errorf("%v (%v)", err, class)
				}
			}
			return turn.End(journal.Entry{Kind: "end"})
		})))
		var drives atomic.Int64
		ok(t, r.Handle("drive", protocolFunc(func(turn *Turn) error {
			switch drives.Add(1) {
			case 1:
				panic("ouch")
			case 2:
				runtime.Goexit()
			}
			return turn.End(journal.Entry{Kind: "end"})
		})))
		r.serveBegun(t, "1", "round:x")
		r.wantEnded(t, "1")
		r.begin(t, "2", "drive:x")
		for _, want := range []string{"panic: ouch", failure.ErrNoReturn.Error()} {
			if synctest.Wait(); r.holding() != 0 || len(r.slots) != 0 {
				t.Errorf("%d are held, in %d slots", r.holding(), len(r.slots))
			}
			if err, _ := told.Load().(error); !strings.Contains(fmt.Sprint(err), want) || interlock.Kind(err) != interlock.Bug {
				t.Errorf("reported %v, want %s", err, want)
			}
			time.Sleep(2 * time.Minute)
		}
		r.wantEnded(t, "2")
	})
}
