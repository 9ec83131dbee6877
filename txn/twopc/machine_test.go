package twopc

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// letters are all records of a transaction of north and south, each with a letter.
var letters = map[rune]journal.Entry{
	'C': decide(Commit, decideData{ID: "1", Run: "r", Branches: []string{"north", "south"}}),
	'A': decide(Abort, decideData{Run: "r", Reason: "there was no decision"}),
	'n': {Kind: recordDone, Step: "north"},
	's': {Kind: recordDone, Step: "south"},
	'N': heuristic("north", errWork),
	'S': heuristic("south", errWork),
	'm': {Kind: recordRemind},
	'r': record(recordResolved, "", reasonData{Actor: "ann", Text: "paid"}),
	'e': end(),
}

// TestMachineTakesNothingElse: of all sequences of up to five records, the machine accepts
// the legal ones, and no others.
func TestMachineTakesNothingElse(t *testing.T) {
	taken := 0
	var try func(word string)
	try = func(word string) {
		var entries []journal.Entry
		for _, l := range word {
			entries = append(entries, letters[l])
		}
		m, err := replay(entries)
		if (err == nil) != legal(word) {
			t.Fatalf("%s: %v", word, err)
		}
		if err != nil {
			return // nor is any continuation
		}
		if taken++; m.state != stateOf(word) || m.ended != strings.HasSuffix(word, "e") {
			t.Errorf("%s: %v, ended %v", word, m.state, m.ended)
		}
		if len(word) < 5 {
			for l := range letters {
				try(word + string(l))
			}
		}
	}
	for l := range letters {
		try(string(l))
	}
	if taken < 60 {
		t.Errorf("%d were taken", taken)
	}
}

// legal reports by the letters alone whether a sequence of records is possible.
func legal(word string) bool {
	first, rest := word[0], word[1:]
	if first != 'C' && first != 'A' || strings.ContainsAny(rest, "CA") {
		return false
	}
	if at := strings.IndexByte(rest, 'e'); at >= 0 && at != len(rest)-1 {
		return false
	}
	for i, l := range rest {
		before := rest[:i]
		heuristic := strings.ContainsAny(before, "NS")
		settled := heuristic && (first == 'A' || strings.ContainsAny(before, "nN") && strings.ContainsAny(before, "sS"))
		resolved := strings.Contains(before, "r")
		switch l {
		case 'n', 'N', 's', 'S':
			if strings.ContainsAny(strings.ToLower(before), strings.ToLower(string(l))) || first == 'A' && (l == 'n' || l == 's') || resolved {
				return false
			}
		case 'm':
			if !heuristic || resolved {
				return false
			}
		case 'r':
			if !settled || resolved {
				return false
			}
		case 'e':
			if heuristic && !resolved {
				return false
			}
		}
	}
	return true
}

func stateOf(word string) State {
	switch {
	case strings.Contains(word, "r"):
		return Resolved
	case strings.ContainsAny(word, "NS"):
		return Heuristic
	case word[0] == 'A':
		return Aborted
	case strings.HasSuffix(word, "e"):
		return Committed
	}
	return Committing
}

// TestMachineRefusesStrangeRecords: a record of a newer version or a broken store is an
// error.
func TestMachineRefusesStrangeRecords(t *testing.T) {
	for name, entries := range map[string][]journal.Entry{
		"kind":     {letters['C'], {Kind: "frob"}},
		"decision": {decide("perhaps", decideData{})},
		"data":     {{Kind: recordDecide, Step: "commit", Data: []byte("{")}},
		"abort":    {{Kind: recordDecide, Step: "abort", Data: []byte("{")}},
		"nobody":   {decide(Commit, decideData{Run: "r"})},
		"branch":   {letters['C'], heuristic("east", errWork)},
		"why":      {letters['C'], {Kind: recordHeuristic, Step: "north", Data: []byte("?")}},
		"resolved": {letters['A'], letters['N'], {Kind: recordResolved, Data: []byte("?")}},
	} {
		if m, err := replay(entries); err == nil {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

// TestCount: all but a clear yes or read-only vote counts as no, and branches that may be
// prepared are rolled back.
func TestCount(t *testing.T) {
	clear := &interlock.Error{Op: "prepare", Kind: interlock.Definite, Err: errWork}
	retry := &interlock.Error{Op: "prepare", Kind: interlock.Retryable, Err: errWork}
	for name, c := range map[string]struct {
		ballots      []ballot
		against      bool
		yes, perhaps []string
	}{
		"all yes":     {[]ballot{{"a", driver.VoteYes, nil}, {"b", driver.VoteYes, nil}}, false, []string{"a", "b"}, nil},
		"read only":   {[]ballot{{"a", driver.VoteYes, nil}, {"b", driver.VoteReadOnly, nil}}, false, []string{"a"}, nil},
		"no":          {[]ballot{{"a", driver.VoteYes, nil}, {"b", driver.VoteNo, nil}}, true, []string{"a"}, nil},
		"definite":    {[]ballot{{"a", driver.VoteYes, nil}, {"b", driver.VoteNo, clear}}, true, []string{"a"}, nil},
		"retryable":   {[]ballot{{"a", driver.VoteYes, nil}, {"b", driver.VoteNo, retry}}, true, []string{"a"}, nil},
		"unknown":     {[]ballot{{"a", driver.VoteYes, nil}, {"b", driver.VoteYes, errNetwork}}, true, []string{"a"}, []string{"b"}},
		"strange":     {[]ballot{{"a", driver.Vote(7), nil}}, true, nil, nil},
		"none at all": {nil, false, nil, nil},
	} {
		got := countVotes(c.ballots)
		if (got.abortReason != nil) != c.against || !slices.Equal(got.yes, c.yes) || !slices.Equal(got.unclear, c.perhaps) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestJudge: each branch in doubt has one verdict. No abort is presumed for a branch whose
// run may be active, or whose records may be deleted.
func TestJudge(t *testing.T) {
	o := Options{Patience: time.Minute, Retention: time.Hour}
	committing, aborted, byHand := machine{}, machine{}, machine{}
	for m, letter := range map[*machine]rune{&committing: 'C', &aborted: 'A', &byHand: 'C'} {
		got, err := replay([]journal.Entry{letters[letter]})
		ok(t, err)
		*m = got
	}
	byHand.data.Actor = "ann"
	ours, theirs := run{key: "1", sign: "r"}, run{key: "1", sign: "q"}
	for name, c := range map[string]struct {
		doubt inDoubtBranch
		m     *machine
		want  verdict
	}{
		"young, undecided":      {inDoubtBranch{ours, "north", o.Patience - 1, o.Patience, false}, nil, leave},
		"old, undecided":        {inDoubtBranch{ours, "north", o.Patience, o.Patience, false}, nil, presume},
		"old, running here":     {inDoubtBranch{ours, "north", time.Hour, time.Hour, true}, nil, leave},
		"too old":               {inDoubtBranch{ours, "north", o.Patience, o.Retention, false}, nil, tooOld},
		"too old by its run":    {inDoubtBranch{ours, "north", 0, o.Retention, false}, nil, tooOld},
		"aborted":               {inDoubtBranch{ours, "north", 0, 0, false}, &aborted, rollBack},
		"aborted and very old":  {inDoubtBranch{ours, "north", time.Hour, 9 * time.Hour, false}, &aborted, rollBack},
		"aborted, another run":  {inDoubtBranch{theirs, "north", 0, 0, false}, &aborted, rollBack},
		"committed, young":      {inDoubtBranch{ours, "north", o.Patience - 1, 0, false}, &committing, leave},
		"committed, old":        {inDoubtBranch{ours, "north", o.Patience, 0, false}, &committing, commit},
		"committed, very old":   {inDoubtBranch{ours, "south", time.Hour, 9 * time.Hour, false}, &committing, commit},
		"another run committed": {inDoubtBranch{theirs, "north", 0, 0, false}, &committing, rollBack},
		"a branch too many":     {inDoubtBranch{ours, "east", time.Hour, time.Hour, false}, &committing, foreign},
		"missed by a person":    {inDoubtBranch{ours, "east", time.Hour, time.Hour, false}, &byHand, commit},
		"another run, by hand":  {inDoubtBranch{theirs, "east", time.Hour, time.Hour, false}, &byHand, rollBack},
	} {
		if got := c.doubt.judge(c.m, o); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestNames: each id has a key, and each run a name that participants can hold and that
// identifies it; other names are not mistaken for one.
func TestNames(t *testing.T) {
	now := time.Unix(1795300000, 5)
	seen := map[string]string{}
	for _, id := range []string{"1", "transfer/42", "~", "a b", "ä", strings.Repeat("x", longestKey), strings.Repeat("x", longestKey+1),
		strings.Repeat("x", 200), "~" + strings.Repeat("x", longestKey), "1.000000000000", "."} {
		r := begin(id, now, 1<<31+7)
		if other, twice := seen[r.key]; twice {
			t.Errorf("%q and %q have the key %q", id, other, r.key)
		}
		seen[r.key] = id
		if Key(r.key) != r.key {
			t.Errorf("%q: the key of the key is %q", id, Key(r.key))
		}
		ok(t, r.xid(strings.Repeat("b", driver.MaxXIDBranch)).Check())
		back, err := parse(r.String())
		if err != nil || back.key != r.key || back.sign != r.sign || !back.began.Equal(time.Unix(1795300000, 0)) {
			t.Errorf("%q: %+v, %v", id, back, err)
		}
	}
	if begin("1", now, 1) == begin("1", now, 2) || begin("1", now, 1) == begin("1", now.Add(time.Second), 1) {
		t.Error("two runs have one name")
	}
	for _, name := range []string{"", "1", "1.00000000000", "1_000000000000", "1.00000000000w", "1.00000000000A", "1.-00000000000", ".000000000000",
		strings.Repeat("x", longestKey+1) + ".000000000000", "a b.000000000000"} {
		if r, err := parse(name); err == nil {
			t.Errorf("%q was taken for %+v", name, r)
		}
	}
	if !errors.Is(uncertain("x", "y", errWork), interlock.ErrUncertain) || len(truncated(strings.Repeat("ä", 1000))) > coordinator.MaxReason+5 {
		t.Error("errors")
	}
}

func FuzzRunName(f *testing.F) {
	for _, s := range []string{"transfer-42.0123456789ab", "a.vvvvvvvvvvvv", ".0123456789ab", "a.0123456789AB", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if r, err := parse(name); err == nil && r.String() != name {
			t.Fatalf("%q is %+v, which is %q", name, r, r.String())
		}
	})
}
