package saga

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
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

var somebody = note{By: By{Actor: "ann", Reason: "because"}}

// letters are all records of a saga with an undoable step a, a pivot p, and a step z
// after it.
var letters = map[string]journal.Entry{
	"begin":  record(recordBegin, "", begun{Input: json.RawMessage(`1`)}),
	"sent a": record(recordSent, "a", sending{Stage: 1, Undo: "una"}), "sent p": record(recordSent, "p", sending{Stage: 2, Pivot: true}),
	"sent z":  record(recordSent, "z", sending{Stage: 3}),
	"never a": {Kind: recordNever, Step: "a"}, "never p": {Kind: recordNever, Step: "p"}, "never z": {Kind: recordNever, Step: "z"},
	"done a": {Kind: recordDone, Step: "a", Data: []byte("1")}, "done p": {Kind: recordDone, Step: "p", Data: []byte("1")}, "done z": {Kind: recordDone, Step: "z", Data: []byte("1")},
	"refused a": record(recordFailed, "a", why{}), "refused p": record(recordFailed, "p", why{}), "refused z": record(recordFailed, "z", why{}),
	"unknown a": record(recordFailed, "a", why{Unknown: true}), "unknown p": record(recordFailed, "p", why{Unknown: true}), "unknown z": record(recordFailed, "z", why{Unknown: true}),
	"commit": record(recordDecide, decideCommit, why{}), "abort": record(recordDecide, decideAbort, why{}),
	"undone a": {Kind: recordUndone, Step: "a"}, "undone p": {Kind: recordUndone, Step: "p"}, "undone z": {Kind: recordUndone, Step: "z"},
	"dead a": record(recordDead, "a", why{}), "dead p": record(recordDead, "p", why{}),
	"retry a": record(recordRetry, "a", somebody), "retry all": record(recordRetry, "", somebody),
	"skip a": record(recordSkip, "a", somebody), "skip p": record(recordSkip, "p", somebody), "skip z": record(recordSkip, "z", somebody),
	"resolved": record(recordResolved, "", somebody), "remind": {Kind: recordRemind}, "end": {Kind: recordEnd},
	"taken": {Kind: recordTaken}, "halted": record(recordHalted, "", why{Error: "it crashes"}),
}

// never are states that no saga reaches.
var never = []string{"unknown p", "undone p", "undone z", "dead p", "skip p"}

// TestEveryHistory visits all histories of up to ten records that the machine accepts. None
// breaks a rule, and each record occurs in some. Of histories with the same state of the
// machine and the judge, it follows one.
func TestEveryHistory(t *testing.T) {
	t.Parallel()
	if testbed.Brief() {
		t.Skip("one goroutine: not with the race detector")
	}
	type place struct {
		m       machine
		j       judge
		history []string
	}
	used, seen := map[string]int{}, map[string]bool{}
	next := []place{{j: judge{fate: map[string]string{}}}}
	for length := 0; length < 10 && len(next) > 0; length++ {
		places := next
		next = nil
		for _, at := range places {
			for name, e := range letters {
				m, err := at.m.with(e)
				if err != nil {
					continue
				}
				used[name]++
				j := at.j.copied()
				history := append(slices.Clone(at.history), name)
				if broken := j.follow(name, length == 0); broken != "" {
					t.Fatalf("%s: %v", broken, history)
				}
				if as := alike(m, j); !seen[as] {
					seen[as] = true
					next = append(next, place{m, j, history})
				}
			}
		}
	}
	for name := range letters {
		if (used[name] == 0) != slices.Contains(never, name) {
			t.Errorf("%q was taken %d times", name, used[name])
		}
	}
	if len(seen) < 1000 {
		t.Errorf("only %d places", len(seen))
	}
	t.Logf("%d places", len(seen))
}

// alike returns equal text for states with the same continuations.
func alike(m machine, j judge) string {
	closed := m.resolved != nil
	m.resolved = nil // all have an actor
	return fmt.Sprintf("%+v %v %+v", m, closed, j)
}

// judge follows a history by its own rules: the known state of each step, and whether it
// needs an undo.
type judge struct {
	fate    map[string]string // of each step: sent, done, refused, unknown, undone, dead, skipped; absent
	decided string
	over    bool // an end
	closed  bool // resolved
	halted  bool
}

func (j judge) copied() judge {
	j.fate = maps.Clone(j.fate)
	return j
}

// follow judges another record without the machine.
func (j *judge) follow(name string, first bool) string {
	verb, step, _ := strings.Cut(name, " ")
	if first != (verb == "begin") || j.over {
		return "before the begin, a second one, or behind the end"
	}
	if wrong := j.take(verb, step); wrong != "" {
		return wrong + ": " + name
	}
	return ""
}

func (j *judge) take(verb, step string) string {
	was := j.fate[step]
	owed := j.decided == "abort" && (was == "done" || was == "unknown" || was == "sent")
	if j.halted && !slices.Contains([]string{"abort", "retry", "skip", "remind", "resolved"}, verb) && !(j.closed && verb == "end") {
		return "it goes on though it is halted"
	}
	halted := j.halted
	j.halted = halted && (verb == "remind" || j.closed || verb == "resolved")
	switch verb {
	case "taken", "halted":
		if j.closed || j.dead() {
			return "taken over though nothing is called"
		}
		j.halted = verb == "halted"
	case "commit", "abort":
		return j.decide(verb)
	case "sent":
		return j.send(step)
	case "done", "refused", "unknown":
		if was != "sent" || j.decided == "abort" || j.decided == "commit" && verb != "done" || step == "p" && verb == "unknown" {
			return "an answer to what is not in flight, or a failure that may not be"
		}
		j.fate[step] = verb
	case "never":
		if was != "sent" || j.decided == "commit" {
			return "not sent, and withdrawn"
		}
		delete(j.fate, step)
	case "undone", "dead":
		if !owed || step != "a" {
			return "undone what has not happened, or is never undone"
		}
		j.fate[step] = verb
	case "retry", "skip":
		return j.operate(verb, step, halted)
	case "remind":
		if !j.dead() && !halted {
			return "reminded of nothing"
		}
	case "resolved":
		if !j.dead() && !halted || j.closed {
			return "resolved what is no dead letter"
		}
		j.closed = true
	case "end":
		return j.end()
	}
	return ""
}

func (j *judge) dead() bool { return j.fate["a"] == "dead" }

func (j *judge) decide(what string) string {
	for step, fate := range j.fate {
		switch {
		case j.decided != "":
			return "a second decision"
		case what == "commit" && fate != "done":
			return "committed over " + step
		case what == "abort" && step == "p" && fate != "refused":
			return "aborted after the pivot"
		}
	}
	if j.decided != "" {
		return "a second decision"
	}
	j.decided = what
	return ""
}

func (j *judge) send(step string) string {
	_, twice := j.fate[step]
	_, pivot := j.fate["p"]
	failed := slices.ContainsFunc([]string{"a", "p", "z"}, func(s string) bool { return j.fate[s] == "refused" || j.fate[s] == "unknown" })
	switch {
	case twice, j.decided == "abort", failed:
		return "sent twice, or though it cannot be"
	case pivot && j.decided == "":
		return "sent after the pivot, and it is not decided"
	case step == "p" && (j.fate["a"] == "sent" || j.decided != ""):
		return "the pivot is sent before its time"
	case step == "a" && j.decided == "commit":
		return "to be undone behind the decision to commit"
	}
	j.fate[step] = "sent"
	return ""
}

func (j *judge) operate(verb, step string, halted bool) string {
	if step == "all" {
		step = "a"
		sent := slices.ContainsFunc([]string{"a", "p", "z"}, func(s string) bool { return j.fate[s] == "sent" })
		if !j.closed && !j.dead() && (sent || halted) {
			return ""
		}
	}
	was := j.fate[step]
	switch {
	case j.closed:
		return "somebody has closed it"
	case verb == "retry" && was == "dead":
		j.fate[step] = "unknown"
	case verb == "retry" && was == "sent", verb == "retry" && j.decided == "abort" && (was == "done" || was == "unknown"):
	case verb == "skip" && (was == "dead" || j.decided == "commit" && was == "sent" ||
		j.decided == "abort" && step == "a" && (was == "done" || was == "unknown" || was == "sent")):
		j.fate[step] = "skipped"
	default:
		return "not an operator's to do"
	}
	return ""
}

func (j *judge) end() string {
	j.over = true
	if j.closed {
		return ""
	}
	for step, fate := range j.fate {
		switch {
		case fate == "dead", j.decided == "":
			return "ended undecided, or over a dead letter"
		case j.decided == "commit" && fate != "done" && fate != "skipped":
			return "ended without " + step
		case step == "a" && j.decided == "abort" && (fate == "done" || fate == "unknown" || fate == "sent"):
			return "ended before it was undone"
		}
	}
	if j.decided == "" {
		return "ended undecided"
	}
	return ""
}

// TestRecordIsJSON: a record that could not be read again is not written.
func TestRecordIsJSON(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it was not rejected")
		}
	}()
	record(recordRetry, "a", note{Input: json.RawMessage("{")})
}

// TestAddedToAnAnsweredStage: a step that a new definition adds to a finished stage is
// reported; one in the last answered stage, or before an unanswered one, is not.
func TestAddedToAnAnsweredStage(t *testing.T) {
	g := &target{}
	a, b, added := g.undoable("a"), g.undoable("b"), g.undoable("new")
	entries := []journal.Entry{letters["begin"], letters["sent a"], record(recordSent, "b", sending{Stage: 2, Undo: "unb"}), letters["done a"]}
	answered := append(entries[:4:4], journal.Entry{Kind: recordDone, Step: "b", Data: []byte("1")})
	for name, c := range map[string]struct {
		d       Definition[string]
		entries []journal.Entry
		says    string
	}{
		"in a stage that is over":   {Define("order", Parallel[string](a, added), b, g.act("p").Pivot()), answered, `transaction "1": step "new": the definition of "order" has it before "b", which was answered without it` + useOldDefinition},
		"in the last stage":         {Define("order", a, Parallel[string](b, added), g.act("p").Pivot()), answered, ""},
		"before what is called yet": {Define("order", Parallel[string](a, added), b), entries, ""},
		"in a saga that is aborted": {Define("order", Parallel[string](a, added), b), append(entries[:4:4], record(recordFailed, "b", why{})), ""},
	} {
		execution, err := newExecution(c.d.plan, driver.Head{Transaction: "1"}, c.entries, false)
		if got := ""; err != nil {
			if got = err.Error(); got != c.says {
				t.Errorf("%s: %s", name, got)
			}
			wantKind(t, err, interlock.Bug, ErrMismatch)
		} else if c.says != "" {
			t.Errorf("%s: it is not reported", name)
		}
		execution.close()
	}
}

// TestRecordsWithoutACall: a saga whose OnEnd is gone, or crashes each owner, ends; and one that was
// claimed before its start has a record with its due time.
func TestRecordsWithoutACall(t *testing.T) {
	p := Define("order", (&target{}).undoable("a")).plan
	over := []journal.Entry{begin([]byte(`"in"`), time.Time{}, time.Time{}, true), {Kind: recordDecide, Step: decideCommit, Data: []byte("{}")}, {Kind: recordFinished}}
	later := []journal.Entry{begin([]byte(`"in"`), time.Time{}, began.Add(time.Hour), false)}
	next := func(c *execution) { _, err := c.next(began); ok(t, err) }
	for kind, s := range map[string]struct {
		entries []journal.Entry
		do      func(*execution)
	}{
		"no OnEnd: " + recordEnd:      {over, next},
		"OnEnd crashes: " + recordEnd: {over, func(c *execution) { c.takeOver(began, func(int) bool { return true }) }},
		"early: " + recordLater:       {later, next},
	} {
		c, err := newExecution(p, driver.Head{Transaction: "1", Claimed: true}, s.entries, false)
		ok(t, err)
		s.do(c)
		if c.close(); len(c.pending) != 1 || !strings.HasSuffix(kind, " "+c.pending[0].Kind) {
			t.Errorf("%s: it records %v", kind, c.pending)
		}
	}
}
