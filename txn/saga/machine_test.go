package saga

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/journal"
)

// letters are all records of a saga with an undoable step a, one that needs no undo
// b, and a pivot p.
var letters = map[string]journal.Entry{
	"begin":  record(recordBegin, "", begun{Input: json.RawMessage(`1`)}),
	"sent a": record(recordSent, "a", sending{Undo: "una"}), "sent b": record(recordSent, "b", sending{}), "sent p": record(recordSent, "p", sending{Pivot: true}),
	"done a": {Kind: recordDone, Step: "a", Data: []byte("1")}, "done b": {Kind: recordDone, Step: "b", Data: []byte("1")}, "done p": {Kind: recordDone, Step: "p", Data: []byte("1")},
	"refused a": record(recordFailed, "a", why{}), "refused b": record(recordFailed, "b", why{}), "refused p": record(recordFailed, "p", why{}),
	"unknown a": record(recordFailed, "a", why{Unknown: true}), "unknown b": record(recordFailed, "b", why{Unknown: true}), "unknown p": record(recordFailed, "p", why{Unknown: true}),
	"commit": record(recordDecide, decideCommit, why{}), "abort": record(recordDecide, decideAbort, why{}),
	"undone a": {Kind: recordUndone, Step: "a"}, "undone b": {Kind: recordUndone, Step: "b"}, "undone p": {Kind: recordUndone, Step: "p"},
	"dead a": record(recordDead, "a", why{}), "remind": {Kind: recordRemind}, "end": {Kind: recordEnd},
}

// TestEveryHistory goes through all histories of up to twelve records that the machine
// takes, and finds none that breaks a rule; and each record is of use in some.
func TestEveryHistory(t *testing.T) {
	used := map[string]int{}
	histories := 0
	var grow func(m machine, history []string)
	grow = func(m machine, history []string) {
		histories++
		if broken := breaks(history); broken != "" {
			t.Fatalf("%s: %v", broken, history)
		}
		if len(history) == 12 {
			return
		}
		for name, e := range letters {
			if name == "remind" && len(history) > 0 && history[len(history)-1] == name {
				continue // for ever
			}
			if next, err := m.with(e); err == nil {
				used[name]++
				grow(next, append(history[:len(history):len(history)], name))
			}
		}
	}
	grow(machine{}, nil)
	for name := range letters {
		never := name == "unknown p" || name == "undone b" || name == "undone p"
		if (used[name] == 0) != never {
			t.Errorf("%q was taken %d times", name, used[name])
		}
	}
	if histories < 200 {
		t.Errorf("only %d histories", histories)
	}
	t.Logf("%d histories", histories)
}

// breaks judges a history without the machine.
func breaks(history []string) string {
	at := map[string]int{} // how often, and from 1, where last
	for i, name := range history {
		if at[name] != 0 && name != "remind" {
			return "twice: " + name
		}
		at[name] = i + 1
	}
	before := func(a, b string) bool { return at[b] == 0 || at[a] != 0 && at[a] < at[b] }
	var flying, failed string
	for i, name := range history {
		verb, step, _ := strings.Cut(name, " ")
		switch verb {
		case "begin":
			if i != 0 {
				return "a second begin"
			}
		case "sent":
			if flying != "" || at["abort"] != 0 && at["abort"] <= i {
				return "sent while another is in flight, or after the decision to abort"
			}
			if failed != "" {
				return "went on over a failure"
			}
			flying = step
		case "done", "refused", "unknown":
			if flying != step {
				return "an answer to what is not in flight"
			}
			if verb != "done" {
				failed = step
			}
			if flying = ""; verb != "done" && at["commit"] != 0 && at["commit"] <= i {
				return "given up behind the commit"
			}
		case "commit", "abort":
			if flying != "" {
				return "decided in flight"
			}
		}
		if at["end"] != 0 && i >= at["end"] {
			return "behind the end"
		}
	}
	switch {
	case len(history) > 0 && history[0] != "begin":
		return "no begin"
	case at["commit"] != 0 && at["abort"] != 0:
		return "two decisions"
	case at["abort"] != 0 && at["done p"] != 0:
		return "aborted behind the pivot"
	case at["commit"] != 0 && at["refused a"]+at["unknown a"]+at["refused b"]+at["unknown b"]+at["refused p"]+at["unknown p"] != 0:
		return "committed behind a failure"
	case at["unknown p"] != 0:
		return "a pivot given up in doubt"
	case !before("abort", "undone a"), !before("abort", "dead a"):
		return "undone before the decision"
	case at["undone a"] != 0 && at["dead a"] != 0:
		return "undone and dead"
	case at["undone a"]+at["dead a"] != 0 && at["done a"]+at["unknown a"] == 0:
		return "undone, and has not happened"
	case at["undone b"]+at["undone p"] != 0:
		return "undone what has no undo"
	case at["remind"] != 0 && at["dead a"] == 0:
		return "reminded of nothing"
	case at["end"] != 0 && (at["dead a"] != 0 || at["commit"]+at["abort"] == 0):
		return "ended undecided, or over a dead letter"
	case at["end"] != 0 && at["abort"] != 0 && at["done a"]+at["unknown a"] != 0 && at["undone a"] == 0:
		return "ended before it was undone"
	case at["done p"] != 0 && at["commit"] == 0 && len(history) > at["done p"]:
		return "went on behind the pivot undecided"
	}
	return ""
}

// TestUndoOrder: whatever was sent last is undone first, and nothing else is taken.
func TestUndoOrder(t *testing.T) {
	m := machine{}
	var err error
	entries := []journal.Entry{letters["begin"]}
	for i := range 4 {
		name := fmt.Sprint("s", i)
		entries = append(entries, record(recordSent, name, sending{Undo: "un" + name}), journal.Entry{Kind: recordDone, Step: name, Data: []byte("1")})
	}
	m, err = m.with(append(entries, letters["abort"])...)
	ok(t, err)
	for i := 3; i >= 0; i-- {
		for other := range 4 {
			_, err := m.with(journal.Entry{Kind: recordUndone, Step: fmt.Sprint("s", other)})
			if (err == nil) != (other == i) {
				t.Errorf("s%d instead of s%d: %v", other, i, err)
			}
		}
		m, err = m.with(journal.Entry{Kind: recordUndone, Step: fmt.Sprint("s", i)})
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
			got := trial.judge(p, class)
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
