package saga

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestUndoOrder: the last sent stage is undone first, its steps in any order, and other
// orders are rejected.
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

// TestDamage: records that this package has not written are reported, and are harmless.
func TestDamage(t *testing.T) {
	for _, entries := range [][]journal.Entry{
		{{Kind: recordBegin, Data: []byte("{")}},
		{letters["begin"], {Kind: "newer"}},
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

// TestRecordsThatCannotFollow are rejected: the error has the reason, the record and the
// state. The records before them do not change.
func TestRecordsThatCannotFollow(t *testing.T) {
	wait := record(recordSent, "w", sending{Stage: 1, Until: 5})
	b := []journal.Entry{letters["begin"], record(recordSent, "a", sending{Stage: 1, Undo: "una"}), record(recordSent, "b", sending{Stage: 2, Undo: "unb"})}
	undoing := append(b[:3:3], letters["abort"])
	broken := func(kind, step string) journal.Entry { return journal.Entry{Kind: kind, Step: step, Data: []byte("{")} }
	order := errOrder.Error()
	for name, c := range map[string]struct {
		before []journal.Entry
		next   journal.Entry
		says   string
	}{
		"nothing before it":             {nil, letters["sent a"], order},
		"of a newer version":            {b, journal.Entry{Kind: "newer"}, "a newer version wrote it"},
		"the pivot over another":        {b[:2], letters["sent p"], "all steps before a pivot"},
		"a failure is not decided on":   {append(b[:2:2], letters["refused a"]), letters["sent z"], "the decision must come first"},
		"sent too late":                 {append(b[:2:2], letters["done a"]), record(recordSent, "x", sending{Stage: 0, Undo: "unx"}), "a later step was answered"},
		"answered too early":            {b, journal.Entry{Kind: recordDone, Step: "b"}, order},
		"an answer of nobody":           {b, letters["done z"], order},
		"a wait that fails":             {[]journal.Entry{b[0], wait}, record(recordFailed, "w", why{}), "a wait does not fail"},
		"a wait that never was":         {[]journal.Entry{b[0], wait}, journal.Entry{Kind: recordNever, Step: "w"}, order},
		"withdrawn though done":         {append(b[:2:2], letters["done a"]), letters["never a"], order},
		"withdrawn though perhaps done": {[]journal.Entry{b[0], b[1], letters["unknown a"], letters["abort"]}, letters["never a"], order},
		"withdrawn twice":               {append(undoing[:4:4], letters["never a"]), letters["never a"], order},
		"tried by nobody":               {b, record(recordTried, "z", why{}), order},
		"tried though done":             {append(b[:3:3], letters["done a"]), record(recordTried, "a", why{}), order},
		"tried before its turn":         {undoing, record(recordTried, "a", why{}), order},
		"no attempts":                   {b, broken(recordTried, "a"), "unexpected end of JSON"},
		"no reason for a dead undo":     {undoing, broken(recordDead, "b"), "unexpected end of JSON"},
		"no actor":                      {b, record(recordRetry, "a", note{By: By{Actor: "", Reason: "why"}}), "the actor and the reason"},
		"no reason":                     {undoing, record(recordSkip, "b", note{By: By{Actor: "ann"}}), "the actor and the reason"},
		"hurried by nobody":             {[]journal.Entry{b[0], wait}, broken(recordNow, "w"), "unexpected end of JSON"},
		"hurried, and no wait":          {b, record(recordNow, "a", somebody), order},
		"hurried twice, and over":       {[]journal.Entry{b[0], wait, {Kind: recordDone, Step: "w"}}, record(recordNow, "w", somebody), order},
		"resolved by nobody":            {append(b[:2:2], letters["abort"], letters["dead a"]), broken(recordResolved, ""), "unexpected end of JSON"},
		"sent twice":                    {b, b[1], order},
		"sent while undoing":            {undoing, letters["sent z"], order},
		"undoable behind the decision":  {[]journal.Entry{b[0], letters["commit"]}, b[1], "after the decision to commit nothing is undone"},
		"a pivot nobody knows of":       {[]journal.Entry{b[0], letters["sent p"]}, letters["unknown p"], "may have been done is never given up"},
		"given up behind the decision":  {[]journal.Entry{b[0], letters["commit"], letters["sent z"]}, letters["refused z"], "after the decision to commit no step"},
		"decided twice":                 {undoing, letters["abort"], order},
		"reminded of nothing":           {undoing, letters["remind"], order},
		"ended too early":               {undoing, letters["end"], order},
		"another input of what may be undone": {b, record(recordRetry, "a", note{By: By{Actor: "ann", Reason: "why"}, Input: []byte("1")}),
			"only after the pivot, or for its undo"},
	} {
		m, err := machine{}.with(c.before...)
		ok(t, err)
		was := fmt.Sprintf("%+v", m)
		after, err := m.with(c.next)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), fmt.Sprintf("record %s %q in state %q", c.next.Kind, c.next.Step, m.state)) {
			t.Errorf("%s: %v", name, err)
		}
		if after.state != "" || fmt.Sprintf("%+v", m) != was {
			t.Errorf("%s: it was not rejected: %+v", name, after)
		}
	}
}

// TestAbortedInAWait: a wait calls nothing, so after an abort it is known not to have
// happened; the outcome of a step is unknown.
func TestAbortedInAWait(t *testing.T) {
	wait := record(recordSent, "w", sending{Stage: 2, Until: 5})
	m, err := replay([]journal.Entry{letters["begin"], letters["sent a"], wait, letters["abort"]})
	ok(t, err)
	if w, a := m.find("w"), m.find("a"); w.fate != refused || w.abortedInFlight || a.fate != unknown || !a.abortedInFlight {
		t.Errorf("%+v, %+v", w, a)
	}
}

// TestJudge: the consequence of each class of failure in each phase.
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
		{beforePivot, false, []branch.Class{branch.ClassInProgress, branch.ClassFail}, perhapsNot},
		{beforePivot, false, []branch.Class{branch.ClassRetry, branch.ClassRetry}, again},
		{beforePivot, false, []branch.Class{branch.ClassRetry, branch.ClassRetry, branch.ClassRetry}, notDone},
		{beforePivot, false, []branch.Class{branch.ClassRetry, branch.ClassUnknown, branch.ClassRetry}, perhapsNot},
		{beforePivot, true, []branch.Class{branch.ClassRetry, branch.ClassRetry, branch.ClassRetry}, perhapsNot},
		{beforePivot, false, []branch.Class{branch.ClassRetry, branch.ClassRetry, branch.ClassInProgress}, again},
		{beforePivot, false, []branch.Class{branch.ClassInProgress, branch.ClassInProgress, branch.ClassInProgress, branch.ClassInProgress}, again},
		{atPivot, true, []branch.Class{branch.ClassFail}, notDone},
		{atPivot, false, []branch.Class{branch.ClassRetry, branch.ClassRetry, branch.ClassRetry}, notDone},
		{atPivot, true, []branch.Class{branch.ClassRetry, branch.ClassRetry, branch.ClassRetry, branch.ClassRetry}, again},
		{atPivot, false, []branch.Class{branch.ClassUnknown, branch.ClassRetry, branch.ClassRetry, branch.ClassRetry}, again},
		{afterPivot, false, []branch.Class{branch.ClassFail}, again},
		{afterPivot, false, []branch.Class{branch.ClassRetry, branch.ClassRetry, branch.ClassRetry, branch.ClassUnknown}, again},
		{inUndo, false, []branch.Class{branch.ClassUnknown}, again},
		{inUndo, false, []branch.Class{branch.ClassUnknown, branch.ClassRetry}, markDead},
		{inUndo, false, []branch.Class{branch.ClassInProgress, branch.ClassInProgress, branch.ClassRetry}, again},
		{inUndo, false, []branch.Class{branch.ClassFail}, markDead},
	} {
		trial := attempts{phase: c.phase, mayBeDone: c.maybe}
		for i, class := range c.classes {
			policy, attempts := trial.failed(&step{policy: p}, class)
			got := trial.judge(policy, attempts, class)
			if last := i == len(c.classes)-1; last && got != c.want || !last && got != again {
				t.Errorf("%+v: %v after %d", c, got, i+1)
			}
		}
	}
}

// TestDelay: delays grow to their bound, and are random. If the target is processing the
// call, its own delay is used.
func TestDelay(t *testing.T) {
	p := Policy{First: 80 * time.Millisecond, Max: time.Second}.resolve()
	for _, c := range []struct {
		class    branch.Class
		attempts int
		random   float64
		want     time.Duration
	}{
		{branch.ClassRetry, 1, 0.5, 40 * time.Millisecond}, {branch.ClassUnknown, 3, 0.5, 160 * time.Millisecond}, {branch.ClassUnknown, 100, 0.5, 500 * time.Millisecond},
		{branch.ClassUnknown, 1, 0, 10 * time.Millisecond}, {branch.ClassInProgress, 1, 0.5, 3 * time.Hour},
	} {
		if got := p.delay(c.class, 3*time.Hour, c.attempts, c.random); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if got := p.delay(branch.ClassInProgress, -time.Second, 1, 0); got != 10*time.Millisecond {
		t.Errorf("at once: %v", got)
	}
}

// Records are lines of a kind, a step and JSON, in any order.
func FuzzReplay(f *testing.F) {
	for _, s := range []string{
		"begin\x00\x00{\"input\":1}\nsent\x00a\x00{}\ndone\x00a\x00{\"output\":1}\nend\x00\x00{}",
		"begin\x00\x00{}\ndecide\x00\x00{}\nskip\x00a\x00{}", "wait\x00a\x00{}", "begin\x00\x00null\nbegin\x00\x00{}", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var entries []journal.Entry
		for i, record := range bytes.Split(text, []byte("\n")) {
			if parts := bytes.SplitN(record, []byte{0}, 3); len(parts) == 3 {
				entries = append(entries, journal.Entry{Kind: string(parts[0]), Step: string(parts[1]), Data: parts[2], Position: int64(i + 1)})
			}
		}
		if moments, err := Replay(entries); err == nil && len(moments) != len(entries) {
			t.Fatalf("%d records are %d moments", len(entries), len(moments))
		}
	})
}
