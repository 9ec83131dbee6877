package tcc

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/journal"
)

// letters are all records of a transaction with a branch a that holds, b with an unknown
// outcome, and c that was refused.
var letters = map[string]journal.Entry{
	"tried a": record(recordTried, "a", trying{Resource: "r", Request: json.RawMessage(`1`), Hold: json.RawMessage(`null`)}),
	"tried b": record(recordTried, "b", trying{Resource: "r", Request: json.RawMessage(`1`)}),
	"tried c": record(recordTried, "c", trying{Resource: "r", Request: json.RawMessage(`1`), Refused: true}),
	"tried d": record(recordTried, "d", trying{Resource: "r", Request: json.RawMessage(`1`), Hold: json.RawMessage(`2`)}),
	"confirm": record(recordDecide, "confirm", deciding{}), "cancel": record(recordDecide, "cancel", deciding{}),
	"done a": {Kind: recordDone, Step: "a"}, "done b": {Kind: recordDone, Step: "b"}, "done c": {Kind: recordDone, Step: "c"}, "done d": {Kind: recordDone, Step: "d"},
	"undone a": {Kind: recordUndone, Step: "a"}, "undone b": {Kind: recordUndone, Step: "b"}, "undone c": {Kind: recordUndone, Step: "c"}, "undone d": {Kind: recordUndone, Step: "d"},
	"dead a": record(recordDead, "a", why{Error: "no"}), "dead b": record(recordDead, "b", why{Error: "no"}), "dead c": record(recordDead, "c", why{Error: "no"}),
	"remind": {Kind: recordRemind}, "retry a": record(recordRetry, "a", By{}), "retry": record(recordRetry, "", By{}),
	"skip a": record(recordSkip, "a", By{}), "skip c": record(recordSkip, "c", By{}), "resolved": record(recordResolved, "", By{}), "end": {Kind: recordEnd},
}

// TestEveryHistory visits all histories of up to eight records that the machine accepts.
// None breaks a rule, and each record occurs in some.
func TestEveryHistory(t *testing.T) {
	used, histories := map[string]int{}, 0
	var grow func(m machine, history []string)
	grow = func(m machine, history []string) {
		histories++
		if broken := breaks(history, m.state()); broken != "" {
			t.Fatalf("%s: %v, %s", broken, history, m.state())
		}
		if len(history) == 8 {
			return
		}
		for name, e := range letters {
			if len(history) > 0 && history[len(history)-1] == name {
				continue // forever
			}
			if next, err := m.with(e); err == nil {
				used[name]++
				grow(next, append(history[:len(history):len(history)], name))
			}
		}
	}
	grow(machine{}, nil)
	never := map[string]bool{"done b": true, "done c": true, "undone c": true, "dead c": true, "skip c": true}
	for name := range letters {
		if (used[name] == 0) != never[name] {
			t.Errorf("%q was taken %d times", name, used[name])
		}
	}
	t.Logf("%d histories", histories)
}

// breaks judges a history without the machine.
func breaks(history []string, state State) string {
	states, decision, resolved, ended := map[string]string{}, "", false, false // the state of each branch
	for i, name := range history {
		verb, step, _ := strings.Cut(name, " ")
		switch {
		case ended:
			return "behind the end"
		case verb == "tried" && (decision != "" || states[step] != ""):
			return "tried behind the decision, or twice"
		case verb == "tried":
			states[step] = "pending"
			if step == "c" {
				states[step] = "refused"
			}
		case verb == "confirm" || verb == "cancel":
			if decision != "" {
				return "two decisions"
			}
			if decision = verb; verb == "confirm" && (i == 0 || states["b"] != "" || states["c"] != "") {
				return "confirmed what does not hold"
			}
		case decision == "":
			return "undecided"
		case resolved && verb != "end":
			return "behind what a person has resolved"
		case (verb == "remind" || verb == "resolved") && !waits(states):
			return "no dead letter"
		case verb == "done" && (decision != "confirm" || states[step] != "pending"), verb == "undone" && (decision != "cancel" || states[step] != "pending"):
			return "settled against the decision, or twice"
		case verb == "done" || verb == "undone":
			states[step] = "settled"
		case verb == "dead":
			states[step] = "dead"
		case verb == "skip":
			states[step] = "skipped"
		case verb == "retry":
			for b := range states {
				if states[b] == "dead" && (b == step || step == "") {
					states[b] = "pending"
				}
			}
		case verb == "resolved":
			resolved = true
		case verb == "end":
			for b := range states {
				if !resolved && (states[b] == "pending" || states[b] == "dead") {
					return "ended before " + b
				}
			}
			ended = true
		}
	}
	want := map[string]State{"": "", "confirm": Confirming, "cancel": Cancelling}[decision]
	switch {
	case resolved:
		want = Resolved
	case ended:
		want = map[string]State{"confirm": Confirmed, "cancel": Cancelled}[decision]
	case decision != "" && waits(states):
		want = DeadLetter
	}
	if state != want {
		return "the state is to be " + string(want)
	}
	return ""
}

// waits reports whether only an operator can continue these branches.
func waits(states map[string]string) bool {
	left, buried := false, false
	for b := range states {
		left, buried = left || states[b] == "pending", buried || states[b] == "dead"
	}
	return buried && !left
}

// TestDamage: records that this package has not written are reported, and are harmless.
func TestDamage(t *testing.T) {
	for _, entries := range [][]journal.Entry{
		{{Kind: recordTried, Step: "a", Data: []byte("{")}},
		{{Kind: recordDecide, Step: "cancel", Data: []byte("{")}},
		{{Kind: recordDecide, Step: "perhaps", Data: []byte("{}")}},
		{letters["tried a"], letters["confirm"], {Kind: "later"}},
		{letters["tried a"], letters["confirm"], {Kind: recordDead, Step: "a", Data: []byte("{")}},
		{letters["tried a"], letters["confirm"], {Kind: recordDone, Step: "stranger"}},
	} {
		if m, err := replay(entries); err == nil || m.state() != "" {
			t.Errorf("%v: %+v", entries, m)
		}
	}
}

// TestJudgeTries: the consequences of the outcomes of a branch's tries.
func TestJudgeTries(t *testing.T) {
	const f, r, u, o = branch.ClassFail, branch.ClassRetry, branch.ClassUnknown, branch.ClassInProgress
	p := Policy{Attempts: 3}.resolve()
	for _, c := range []struct {
		classes []branch.Class
		want    verdict
	}{
		{[]branch.Class{f}, notHeld}, {[]branch.Class{r, f}, notHeld}, {[]branch.Class{u, f}, perhapsNot}, {[]branch.Class{o, f}, perhapsNot},
		{[]branch.Class{r, r}, again}, {[]branch.Class{r, r, r}, notHeld}, {[]branch.Class{r, u, r}, perhapsNot}, {[]branch.Class{u, u, u}, perhapsNot},
		{[]branch.Class{o, o, o, o}, again}, {[]branch.Class{r, r, o}, again}, {[]branch.Class{r, o, r, r}, perhapsNot},
	} {
		var so tryAttempts
		for i, class := range c.classes {
			got := so.judge(p, class)
			if last := i == len(c.classes)-1; last && got != c.want || !last && got != again {
				t.Errorf("%+v: %v after %d", c, got, i+1)
			}
		}
	}
}

// TestJudgeSettling: the decided call is repeated forever, except after refusals.
func TestJudgeSettling(t *testing.T) {
	p := Policy{Refusals: 2}.resolve()
	var so settleAttempts
	for range 100 {
		for _, class := range []branch.Class{branch.ClassUnknown, branch.ClassRetry, branch.ClassInProgress} {
			if so.judge(p, class) != again {
				t.Fatal("given up though it was not refused")
			}
		}
	}
	if so.attempts != 200 { // a call in progress has not failed
		t.Errorf("%d attempts: they decide how long the next one waits", so.attempts)
	}
	if first, second := so.judge(p, branch.ClassFail), so.judge(p, branch.ClassFail); first != again || second != markDead {
		t.Errorf("%v, %v", first, second)
	}
}
