package saga

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestUndoOrder: the stage that was sent last is undone first, its steps in any order,
// and nothing else is taken.
func TestUndoOrder(t *testing.T) {
	stages := []int{1, 2, 2, 3}
	entries := []journal.Entry{letters["begin"]}
	for i, stage := range stages {
		name := fmt.Sprint("s", i)
		entries = append(entries, record(recordSent, name, sending{Stage: stage, Undo: "un" + name}), journal.Entry{Kind: recordDone, Step: name, Data: []byte("1")})
	}
	m, err := machine{}.with(append(entries, letters["abort"])...)
	ok(t, err)
	for _, next := range [][]int{{3}, {1, 2}, {2}, {0}} {
		for other := range stages {
			_, err := m.with(journal.Entry{Kind: recordUndone, Step: fmt.Sprint("s", other)})
			if (err == nil) != slices.Contains(next, other) {
				t.Errorf("s%d while %v are next: %v", other, next, err)
			}
		}
		m, err = m.with(journal.Entry{Kind: recordUndone, Step: fmt.Sprint("s", next[0])})
		ok(t, err)
	}
}

// TestDamage: records that nobody here has written are told apart, and do no harm.
func TestDamage(t *testing.T) {
	for _, entries := range [][]journal.Entry{
		{{Kind: recordBegin, Data: []byte("{")}},
		{letters["begin"], {Kind: "later"}},
		{letters["begin"], {Kind: recordSent, Step: "a", Data: []byte("{")}},
		{letters["begin"], letters["sent a"], {Kind: recordFailed, Step: "a", Data: []byte("{")}},
		{letters["begin"], {Kind: recordDecide, Step: decideAbort, Data: []byte("{")}},
		{letters["begin"], {Kind: recordDecide, Step: "perhaps", Data: []byte("{}")}},
	} {
		if m, err := replay(entries); err == nil || m.state != "" {
			t.Errorf("%v: %+v", entries, m)
		}
	}
}

// TestJudge: what follows from each class of failure in each phase.
func TestJudge(t *testing.T) {
	p := Policy{Attempts: 3, Undos: 2}.resolve()
	for _, c := range []struct {
		phase   phase
		maybe   bool
		classes []branch.Class
		want    verdict
	}{
		{beforePivot, false, []branch.Class{branch.ClassFail}, notDone},
		{beforePivot, true, []branch.Class{branch.ClassFail}, perhapsNot},
		{beforePivot, false, []branch.Class{branch.ClassRetry, branch.ClassFail}, notDone},
		{beforePivot, false, []branch.Class{branch.ClassUnknown, branch.ClassFail}, perhapsNot},
		{beforePivot, false, []branch.Class{branch.ClassOngoing, branch.ClassFail}, perhapsNot},
		{beforePivot, false, []branch.Class{branch.ClassRetry, branch.ClassRetry}, again},
		{beforePivot, false, []branch.Class{branch.ClassRetry, branch.ClassRetry, branch.ClassRetry}, notDone},
		{beforePivot, false, []branch.Class{branch.ClassRetry, branch.ClassUnknown, branch.ClassRetry}, perhapsNot},
		{beforePivot, true, []branch.Class{branch.ClassRetry, branch.ClassRetry, branch.ClassRetry}, perhapsNot},
		{beforePivot, false, []branch.Class{branch.ClassRetry, branch.ClassRetry, branch.ClassOngoing}, again},
		{beforePivot, false, []branch.Class{branch.ClassOngoing, branch.ClassOngoing, branch.ClassOngoing, branch.ClassOngoing}, again},
		{atPivot, true, []branch.Class{branch.ClassFail}, notDone},
		{atPivot, false, []branch.Class{branch.ClassRetry, branch.ClassRetry, branch.ClassRetry}, notDone},
		{atPivot, true, []branch.Class{branch.ClassRetry, branch.ClassRetry, branch.ClassRetry, branch.ClassRetry}, again},
		{atPivot, false, []branch.Class{branch.ClassUnknown, branch.ClassRetry, branch.ClassRetry, branch.ClassRetry}, again},
		{afterPivot, false, []branch.Class{branch.ClassFail}, again},
		{afterPivot, false, []branch.Class{branch.ClassRetry, branch.ClassRetry, branch.ClassRetry, branch.ClassUnknown}, again},
		{inUndo, false, []branch.Class{branch.ClassUnknown}, again},
		{inUndo, false, []branch.Class{branch.ClassUnknown, branch.ClassRetry}, bury},
		{inUndo, false, []branch.Class{branch.ClassOngoing, branch.ClassOngoing, branch.ClassRetry}, again},
		{inUndo, false, []branch.Class{branch.ClassFail}, bury},
	} {
		trial := trial{phase: c.phase, maybe: c.maybe}
		for i, class := range c.classes {
			policy, attempts := trial.failed(&step{policy: p}, class)
			got := trial.judge(policy, attempts, class)
			if last := i == len(c.classes)-1; last && got != c.want || !last && got != again {
				t.Errorf("%+v: %v after %d", c, got, i+1)
			}
		}
	}
}

// TestDelay: waits grow to their bound, are drawn at random, and are the target's
// own where it says that it is at work.
func TestDelay(t *testing.T) {
	p := Policy{First: 80 * time.Millisecond, Max: time.Second}.resolve()
	for _, c := range []struct {
		class    branch.Class
		attempts int
		random   float64
		want     time.Duration
	}{
		{branch.ClassRetry, 1, 0.5, 40 * time.Millisecond}, {branch.ClassUnknown, 3, 0.5, 160 * time.Millisecond}, {branch.ClassUnknown, 100, 0.5, 500 * time.Millisecond},
		{branch.ClassUnknown, 1, 0, 10 * time.Millisecond}, {branch.ClassOngoing, 1, 0.5, 3 * time.Hour},
	} {
		if got := p.delay(c.class, 3*time.Hour, c.attempts, c.random); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if got := p.delay(branch.ClassOngoing, -time.Second, 1, 0); got != 10*time.Millisecond {
		t.Errorf("at once: %v", got)
	}
}

// TestClasses: the outermost mark counts, the cause stays visible, and nil is nil.
func TestClasses(t *testing.T) {
	for err, want := range map[error]branch.Class{Fail(errSeat): branch.ClassFail, Retry(errSeat): branch.ClassRetry, Unknown(errSeat): branch.ClassUnknown, errSeat: branch.ClassUnknown,
		Retry(Fail(errSeat)): branch.ClassRetry, fmt.Errorf("bank: %w", Fail(errSeat)): branch.ClassFail} {
		if got, _ := branch.ClassOf(err); got != want || !errors.Is(err, errSeat) {
			t.Errorf("%v: %v", err, got)
		}
	}
	if c, after := branch.ClassOf(Ongoing(time.Hour)); c != branch.ClassOngoing || after != time.Hour {
		t.Errorf("%v, %v", c, after)
	}
	if Fail(nil) != nil || Retry(nil) != nil || Unknown(nil) != nil {
		t.Error("an error of nothing")
	}
}
