package saga

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/journal"
)

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
			return "aborted behind the pivot"
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
		return "sent behind the pivot, and it is not decided"
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
