package tcc_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// testNeverMoreThanThereIs: many transactions compete for the last units of two items, and
// each call is made several times concurrently, in any order. Confirmed units were held,
// held units fit, and repeated calls have the same answer.
func testNeverMoreThanThereIs(t *testing.T, openDB func(testing.TB) *databases.DB) {
	const transactions, sold, left = 24, 3, 5
	in := open(t, openDB(t))
	in.set(t, "room", sold+left)
	take, until := in.holds().Take(), time.Now().Add(time.Hour)
	for _, op := range []branch.Operation{branch.Try, branch.Confirm} {
		ok(t, in.do(t.Context(), take, "sold", op, tcc.Want{Item: "room", N: sold}, until))
	}
	var mu sync.Mutex
	answers := map[string]map[string]bool{}
	var work sync.WaitGroup
	for i := range transactions {
		dice := rand.New(rand.NewPCG(uint64(i), 3))
		ops := []branch.Operation{branch.Try, branch.Try, branch.Cancel, branch.Cancel}
		if i%2 == 0 {
			ops = []branch.Operation{branch.Try, branch.Try, branch.Try}
		}
		dice.Shuffle(len(ops), func(a, b int) { ops[a], ops[b] = ops[b], ops[a] })
		for _, op := range ops {
			work.Go(func() {
				id := fmt.Sprint(i)
				got := in.patient(t, take, id, op, tcc.Want{Item: "room", N: 1}, until)
				mu.Lock()
				defer mu.Unlock()
				if answers[id] == nil {
					answers[id] = map[string]bool{}
				}
				answers[id][string(op)+" "+got] = true
			})
		}
	}
	work.Wait()
	held := int64(0)
	for id, a := range answers {
		if in.state(t, id, "b") == "held" {
			held++
		}
		switch {
		case len(a) > 3, a["try done"] && a["try refused"]:
			t.Errorf("%s: %v", id, a)
		case a["cancel done"] && in.state(t, id, "b") == "held":
			t.Errorf("%s was cancelled and is held", id)
		}
	}
	if l := in.level(t, "room"); l.Held != held || l.Available() < 0 || l.Sold != sold {
		t.Errorf("%d are held: %+v", held, l)
	}
}

// patient repeats a call until it is answered: a Retry error, such as a deadlock, means no
// effect.
func (in inn) patient(t *testing.T, of tcc.Resource[tcc.Want, tcc.Want], id string, op branch.Operation, w tcc.Want, until time.Time) string {
	for range 100 {
		err := in.do(context.Background(), of, id, op, w, until)
		if class, _ := branch.ClassOf(err); err == nil || class != branch.ClassRetry {
			return answer(err)
		}
	}
	t.Errorf("%s %s is never answered", op, id)
	return ""
}

// testConfirmAgainstCancel: of a concurrent confirmation and cancellation, which a correct
// coordinator never sends, one wins, and the other gets an error.
func testConfirmAgainstCancel(t *testing.T, openDB func(testing.TB) *databases.DB) {
	in := open(t, openDB(t), "room")
	take := in.holds().Take()
	for i := range 10 {
		id := fmt.Sprint(i)
		ok(t, in.do(t.Context(), take, id, branch.Try, tcc.Want{Item: "room", N: 1}, time.Now().Add(time.Hour)))
		var confirmed, cancelled string
		var work sync.WaitGroup
		work.Go(func() { confirmed = in.patient(t, take, id, branch.Confirm, tcc.Want{}, time.Time{}) })
		work.Go(func() { cancelled = in.patient(t, take, id, branch.Cancel, tcc.Want{}, time.Time{}) })
		work.Wait()
		if got := in.state(t, id, "b"); got == "confirmed" && (confirmed != "done" || cancelled != "violation") ||
			got == "cancelled" && (confirmed != "violation" || cancelled != "done") || got == "held" {
			t.Errorf("%s: confirmed: %s, cancelled: %s", got, confirmed, cancelled)
		}
	}
	if l := in.level(t, "room"); l.Held != 0 || l.Available() != 10-l.Sold {
		t.Errorf("%+v", l)
	}
}

// testSweep: Sweep asks for the decision of each expired hold, releases it after a cancel and
// keeps it after a confirm. It releases nothing without a decision; a hold without an answer
// does not block others.
func testSweep(t *testing.T, openDB func(testing.TB) *databases.DB) {
	in := open(t, openDB(t), "room")
	holds := in.holds()
	for i, id := range []string{"damaged", "confirmed", "cancelled", "young"} {
		ok(t, in.do(t.Context(), holds.Take(), id, branch.Try, tcc.Want{Item: "room", N: 1}, time.Now().Add(time.Duration(i)*time.Second+time.Minute)))
	}
	in.pass(t, "young", -time.Hour) // and then its time is extended
	ok(t, in.do(t.Context(), holds.Take(), "young", branch.Try, tcc.Want{Item: "room", N: 1}, time.Now().Add(2*time.Hour)))
	ok(t, in.do(t.Context(), holds.Take(), "young", branch.Try, tcc.Want{Item: "room", N: 1}, time.Now().Add(100*time.Hour))) // of a wrong clock
	if left := databases.One[int64](t, in.DB, `select max(until_ms) from interlock_tcc_hold`) - time.Now().UnixMilli(); left < 1 || left > 3*time.Hour.Milliseconds() {
		t.Errorf("%d ms are left", left)
	}
	for _, id := range []string{"damaged", "confirmed", "cancelled"} {
		in.pass(t, id, -time.Hour)
	}
	var asked []string
	damaged := &tcc.MismatchError{ID: "damaged", Problem: "it is a saga"}
	ask := func(_ context.Context, id, name string) (tcc.Decision, error) {
		asked = append(asked, id+" "+name)
		return map[string]tcc.Decision{"confirmed": tcc.Confirm, "cancelled": tcc.Cancel}[id],
			map[bool]error{true: damaged}[id == "damaged"]
	}
	n, oldest := in.overdue(t)
	if n != 3 || oldest < 59*time.Minute || oldest > 2*time.Hour {
		t.Errorf("%d overdue, for %v", n, oldest)
	}
	swept, err := holds.Sweep(t.Context(), ask, 100)
	if swept != (tcc.SweepResult{Freed: 1, Kept: 1}) || !errors.Is(err, tcc.ErrMismatch) || len(asked) != 3 {
		t.Errorf("%+v, %v, asked about %v", swept, err, asked)
	}
	if l := in.level(t, "room"); l.Held != 3 || in.state(t, "cancelled", "b") != "cancelled" {
		t.Errorf("%+v", l)
	}
	if n, _ := in.overdue(t); n != 2 {
		t.Errorf("%d overdue", n)
	}
	if swept, err = holds.Sweep(t.Context(), ask, 100); swept != (tcc.SweepResult{}) || err != nil {
		t.Errorf("at once again: %+v, %v", swept, err)
	}
	ok(t, in.do(t.Context(), holds.Take(), "confirmed", branch.Confirm, tcc.Want{}, time.Time{}))
}

// testSweepStops: while the coordinator does not answer, nothing is released, and Sweep does
// not ask about every hold.
func testSweepStops(t *testing.T, openDB func(testing.TB) *databases.DB) {
	in := open(t, openDB(t), "room")
	for i := range 3 {
		id := fmt.Sprint(i)
		ok(t, in.do(t.Context(), in.holds().Take(), id, branch.Try, tcc.Want{Item: "room", N: 1}, time.Now().Add(time.Minute)))
		in.pass(t, id, -time.Hour)
	}
	asked, gone := 0, errors.New("nobody answers")
	_, err := in.holds().Sweep(t.Context(), func(context.Context, string, string) (tcc.Decision, error) { asked++; return "", gone }, 100)
	if !errors.Is(err, gone) || asked != 1 || in.level(t, "room").Held != 3 {
		t.Errorf("%v, asked %d times", err, asked)
	}
	swept, err := in.holds().Sweep(t.Context(), func(context.Context, string, string) (tcc.Decision, error) { return tcc.Cancel, nil }, 2)
	if swept.Freed != 2 || err != nil || in.level(t, "room").Held != 1 {
		t.Errorf("%+v, %v", swept, err)
	}
}

// testSweepGoesOn: a hold whose coordinator never answers does not prevent later sweeps from
// releasing those of other coordinators.
func testSweepGoesOn(t *testing.T, openDB func(testing.TB) *databases.DB) {
	in := open(t, openDB(t), "room")
	for i, id := range []string{"stuck/1", "stuck/2", "free/1", "free/2"} {
		ok(t, in.do(t.Context(), in.holds().Take(), id, branch.Try, tcc.Want{Item: "room", N: 1}, time.Now().Add(time.Minute)))
		in.pass(t, id, time.Duration(i)*time.Second-time.Hour)
	}
	gone := errors.New("nobody answers")
	ask := func(_ context.Context, id, _ string) (tcc.Decision, error) {
		if strings.HasPrefix(id, "stuck") {
			return "", gone
		}
		return tcc.Cancel, nil
	}
	for range 3 {
		if _, err := in.holds().Sweep(t.Context(), ask, 2); err != nil && !errors.Is(err, gone) {
			t.Fatal(err)
		}
	}
	if held := in.level(t, "room").Held; held != 2 {
		t.Errorf("%d are held", held)
	}
	if n, _ := in.overdue(t); n != 2 {
		t.Errorf("%d overdue", n)
	}
	swept, err := in.holds().Sweep(t.Context(), func(context.Context, string, string) (tcc.Decision, error) { return tcc.Cancel, nil }, 2)
	if swept.Freed != 2 || err != nil {
		t.Errorf("%+v, %v: they are not asked about at once when a coordinator answers", swept, err)
	}
}

// testForgetWaitsForNobody: Forget waits for no transaction on holds, and blocks none, at any
// isolation level.
func testForgetWaitsForNobody(t *testing.T, openDB func(testing.TB) *databases.DB) {
	in := open(t, openDB(t), "room", "suite")
	take, until := in.holds().Take(), time.Now().Add(time.Hour)
	for id, item := range map[string]string{"a": "suite", "b": "room", "c": "room"} {
		ok(t, in.do(t.Context(), take, id, branch.Try, tcc.Want{Item: item, N: 1}, until))
	}
	ok(t, in.do(t.Context(), take, "b", branch.Cancel, tcc.Want{}, until))
	in.Exec(t, `update interlock_tcc_hold set changed_ms = changed_ms - 100000000`)
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	busy := in.Begun(t, driver.ReadCommitted)
	_, _, err := in.Confirm(call(ctx, "a", "b", branch.Confirm), busy)
	ok(t, err)
	forgetting := in.Begun(t, driver.RepeatableRead)
	if n, err := in.Forget(ctx, forgetting, 24*time.Hour, 10); n != 1 || err != nil {
		t.Fatalf("%d forgotten, %v", n, err)
	}
	for _, id := range []string{"aa", "d"} { // on both sides of the deleted rows
		ok(t, in.do(ctx, take, id, branch.Try, tcc.Want{Item: "room", N: 1}, until))
	}
	ok(t, in.do(ctx, take, "c", branch.Cancel, tcc.Want{}, until))
	ok(t, forgetting.Commit(ctx))
	ok(t, busy.Rollback(ctx))
	in.Exec(t, `update interlock_tcc_hold set changed_ms = changed_ms - 100000000, until_ms = until_ms - 100000000`)
	s, err := tcc.Sweep("rooms", in.DB, in.Table, 24*time.Hour).Run(ctx, journal.Mark{})
	if err != nil || s.Removed != 1 || s.Overdue != 3 || s.Oldest < 24*time.Hour {
		t.Errorf("%+v, %v: what a coordinator sweeps", s, err)
	}
}

// pass moves the time of a hold, as if the given time had passed.
func (in inn) pass(t testing.TB, id string, by time.Duration) {
	t.Helper()
	in.Exec(t, fmt.Sprintf(`update interlock_tcc_hold set until_ms = until_ms + %d, ask_ms = ask_ms + %d where transaction_id = '%s'`, by.Milliseconds(), by.Milliseconds(), id))
}

func (in inn) overdue(t testing.TB) (n int, oldest time.Duration) {
	t.Helper()
	in.Do(t, func(ctx context.Context, db driver.SQL) (err error) {
		n, oldest, err = in.Overdue(ctx, db)
		return err
	})
	return n, oldest
}
