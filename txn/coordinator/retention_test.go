package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// noted has the events of a coordinator's hooks.
type noted struct {
	retained txntest.Events[observe.CoordinatorRetained]
	swept    txntest.Events[observe.CoordinatorSwept]
}

func (n *noted) hooks() *observe.Coordinator {
	return &observe.Coordinator{Retained: n.retained.Add, Swept: n.swept.Add}
}

func (r *rig) exists(t *testing.T, id string) bool {
	t.Helper()
	head, _, err := r.store.Read(t.Context(), id, 0)
	ok(t, err)
	return head.Position > 0
}

// TestRetentionByDefault: a coordinator without options removes transactions that ended
// long ago, keeps unfinished ones, and reports both.
func TestRetentionByDefault(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var n noted
		r := idle(t, nil, &Options{Poll: time.Hour, Recheck: time.Hour, Hooks: n.hooks()}, func(_ context.Context, id string) error {
			if id == "open" {
				return errors.New("not yet")
			}
			return nil
		})
		r.serveBegun(t, "open", "call:x")
		for _, id := range []string{"1", "2", "3"} {
			r.begin(t, id, "call:y")
		}
		synctest.Wait()
		time.Sleep(DefaultKeep - time.Hour)
		r.begin(t, "late", "call:y")
		synctest.Wait()
		if !r.exists(t, "1") {
			t.Error("removed before its time")
		}
		time.Sleep(2 * time.Hour)
		for _, id := range []string{"1", "2", "3"} {
			if r.exists(t, id) {
				t.Errorf("%s is still there", id)
			}
		}
		if !r.exists(t, "open") || !r.exists(t, "late") {
			t.Error("removed what is to stay")
		}
		removed, retained := 0, n.retained.All()
		for _, e := range retained {
			removed += e.Forgotten
		}
		last := retained[len(retained)-1]
		if removed != 3 || last.Unfinished != 1 || last.Oldest < DefaultKeep || last.Excepted != 1 || last.Unscheduled != 0 || last.Err != nil {
			t.Errorf("%d removed, last %+v", removed, last)
		}
	})
}

// TestRetentionSweeps: participants may delete records younger than an old unfinished
// transaction, which they except. A sweep that fails does not prevent others.
func TestRetentionSweeps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var n noted
		var marks txntest.Events[journal.Mark]
		boom := errors.New("boom")
		r := idle(t, nil, &Options{Poll: time.Hour, Recheck: time.Hour, Hooks: n.hooks(), Retention: Retention{Every: time.Hour, Batch: 1, Sweeps: []Sweep{
			{"panics", func(context.Context, journal.Mark) (SweepResult, error) { panic("boom") }},
			{"exits", func(context.Context, journal.Mark) (SweepResult, error) { runtime.Goexit(); return SweepResult{}, nil }},
			{"fails", func(context.Context, journal.Mark) (SweepResult, error) { return SweepResult{}, boom }},
			{"rooms", func(_ context.Context, m journal.Mark) (SweepResult, error) {
				marks.Add(m)
				return SweepResult{Removed: 7, Overdue: 2, Oldest: time.Minute}, nil
			}},
		}}}, func(_ context.Context, id string) error {
			if id == "dead" {
				return errors.New("waits for a person")
			}
			return nil
		})
		r.serveBegun(t, "dead", "call:x")
		synctest.Wait()
		time.Sleep(20 * 24 * time.Hour)
		r.begin(t, "young", "call:dead")
		synctest.Wait()
		mark := marks.All()[len(marks.All())-1]
		if age := time.Since(mark.Time); age < 24*time.Hour || age > 28*time.Hour || !slices.Equal(mark.Except, []string{"dead"}) {
			t.Errorf("the mark lies %v back, without %q", age, mark.Except)
		}
		if !mark.Pinned.Before(time.Now().Add(-20 * 24 * time.Hour)) {
			t.Errorf("without exceptions it is %v", mark.Pinned)
		}
		swept := n.swept.All()
		got := swept[len(swept)-4:]
		if interlock.Kind(got[0].Err) != interlock.Bug || !errors.Is(got[1].Err, failure.ErrNoReturn) || !errors.Is(got[2].Err, boom) ||
			got[3] != (observe.CoordinatorSwept{Name: "rooms", Removed: 7, Overdue: 2, Oldest: time.Minute}) {
			t.Errorf("%+v", got)
		}
	})
}

// TestGoexitOfAJob: a job that ends its goroutine has failed once, and runs again.
func TestGoexitOfAJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var n noted
		r := idle(t, nil, &Options{Hooks: n.hooks()}, nil)
		var runs atomic.Int64
		ok(t, r.Background(Job{Name: "odd", Every: time.Hour, Run: func(context.Context) error { runs.Add(1); runtime.Goexit(); return nil }}))
		r.serve(t, 1)
		if time.Sleep(24 * time.Hour); runs.Load() < 10 {
			t.Errorf("%d runs in a day", runs.Load())
		}
	})
}

// TestOneRetains: one of the owners of shards retains, and its successor after it.
func TestOneRetains(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := memory.NewJournal()
		var members [2]*noted
		var coordinators [2]*Coordinator
		for i := range members {
			j, err := journal.New(store, &journal.Options{Shards: 2})
			ok(t, err)
			defer j.Close()
			members[i] = &noted{}
			coordinators[i], err = New(j, &Options{Poll: time.Hour, Hooks: members[i].hooks()})
			ok(t, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var work sync.WaitGroup
		for i, c := range coordinators {
			work.Go(func() { _ = c.Serve(ctx, grant(int64(i)), i) })
		}
		time.Sleep(24 * time.Hour)
		stop()
		work.Wait()
		if a, b := len(members[0].retained.All()), len(members[1].retained.All()); a < 100 || b != 0 {
			t.Errorf("%d and %d times", a, b)
		}
		wantKind(t, txntest.Second(New(coordinators[0].Journal(), &Options{Retention: Retention{Batch: -1}})), interlock.Bug, nil)
		wantKind(t, txntest.Second(New(coordinators[0].Journal(), &Options{Retention: Retention{Sweeps: []Sweep{{}}}})), interlock.Bug, nil)
		wantKind(t, coordinators[0].Background(Job{}), interlock.Bug, nil)
	})
}

// TestSweepAt: a participant over HTTP receives the mark, with unfinished transactions.
func TestSweepAt(t *testing.T) {
	var got branchhttp.Mark
	server := httptest.NewServer(branchhttp.ForgetHandler(func(_ context.Context, m branchhttp.Mark) (int, error) { got = m; return 3, nil }))
	defer server.Close()
	at := time.Now().Truncate(time.Millisecond)
	sweep := SweepAt("stock", branchhttp.Caller{Client: server.Client()}, server.URL)
	swept, err := sweep.Run(t.Context(), journal.Mark{Time: at, Except: []string{"dead"}})
	if err != nil || swept != (SweepResult{Removed: 3}) || !got.Before.Equal(at) || !slices.Equal(got.Except, []string{"dead"}) {
		t.Errorf("%+v, %v; %+v arrived", swept, err, got)
	}
	server.Close()
	if _, err := sweep.Run(t.Context(), journal.Mark{Time: at}); interlock.Kind(err) != interlock.Uncertain {
		t.Errorf("%v", err)
	}
}

// TestSweepBy: retention removes the answers of guard/idempotency that are old enough.
func TestSweepBy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		answers, err := idempotency.New(memory.NewIdempotency(), &idempotency.Options{Retention: time.Minute})
		ok(t, err)
		for i := range 3 {
			call := idempotency.Call{Scope: "alice", Operation: "order", Key: fmt.Sprint(i), Fingerprint: idempotency.Fingerprint(nil)}
			ok(t, txntest.Second(answers.Do(t.Context(), call, func(context.Context) (idempotency.Response, error) { return idempotency.Response{Status: 200}, nil })))
		}
		time.Sleep(time.Hour)
		var n noted
		sweeps := []Sweep{SweepBy("answers", idempotency.NewReaper(answers, nil).Sweep)}
		r := idle(t, nil, &Options{Hooks: n.hooks(), Retention: Retention{Sweeps: sweeps}}, nil)
		ok(t, r.Retain(t.Context()))
		if swept := n.swept.All(); len(swept) != 1 || swept[0].Name != "answers" || swept[0].Removed != 3 || swept[0].Err != nil {
			t.Errorf("%+v", swept)
		}
		if _, err := New(r.Journal(), &Options{Retention: Retention{Sweeps: []Sweep{SweepBy("nothing", nil)}}}); interlock.Kind(err) != interlock.Bug {
			t.Errorf("a sweep of nothing: %v", err)
		}
	})
}
