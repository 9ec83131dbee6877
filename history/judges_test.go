package history

import (
	"bytes"
	"fmt"
	"github.com/interlock-dev/interlock/internal/testbed"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A verdictOf is a checker. The tests write its histories by hand.
type verdictOf = func(iter.Seq2[Event, error]) (Verdict, error)

func (s *script) begin(op, key, id string, n int64) int64 {
	e := Event{Kind: Invoke, Op: op, Key: key, ID: id, Amount: n}
	if op == OpApply {
		e.Amount, e.Stamp = 0, n
	}
	return s.add(e)
}

func (s *script) did(op, key, id string, n int64) { s.end(OK, s.begin(op, key, id, n)) }

func (s *script) read(key string, n int64) { s.readEnds(s.begin(OpRead, key, "", 0), n) }

func (s *script) readEnds(cause, n int64) {
	s.add(Event{Kind: OK, Cause: cause, Amount: n, Stamp: n, Value: fmt.Sprint(n)})
}

func (s *script) state(op, key string, n int64) {
	s.add(Event{Kind: State, Op: op, Key: key, ID: key, Amount: n, Stamp: n, Value: fmt.Sprint(n)})
}

// write begins a write of the value n.
func (s *script) write(n int64) int64 {
	return s.add(Event{Kind: Invoke, Op: OpWrite, Key: "k", Value: fmt.Sprint(n)})
}

// TestJudges has histories that TestAgainstBruteForce does not: of several keys, and of IDs and keys
// of which the checker knows nothing. The others are histories that were once accepted wrongly.
func TestJudges(t *testing.T) {
	for name, tt := range map[string]struct {
		check verdictOf
		play  func(s *script)
		want  []Rule
	}{
		"a delivery that begins before the drain ends, and fails": {CheckDeliveries, func(s *script) {
			s.did(OpPublish, "k", "a", 0)
			failing := s.begin(OpDeliver, "k", "a", 0)
			s.did(OpDrain, "", "", 0)
			s.end(Fail, failing)
			s.did(OpDrain, "", "", 0)
		}, []Rule{RuleDelivered}},
		"out of order after a delivery that failed": {CheckDeliveries, func(s *script) {
			for _, id := range []string{"a", "b", "c"} {
				s.did(OpPublish, "k", id, 0)
			}
			failing := s.begin(OpDeliver, "k", "a", 0)
			s.did(OpDeliver, "k", "b", 0)
			s.end(Fail, failing)
			s.did(OpDeliver, "k", "c", 0)
			s.did(OpDeliver, "k", "a", 0)
		}, []Rule{RuleKeyOrder}},
		"different keys are in no order, nor those without one": {CheckDeliveries, func(s *script) {
			for _, id := range []string{"a", "b"} {
				s.did(OpPublish, "k"+id, id, 0)
				s.did(OpPublish, "", "no"+id, 0)
			}
			for _, id := range []string{"b", "a"} {
				s.did(OpDeliver, "k"+id, id, 0)
				s.did(OpDeliver, "", "no"+id, 0)
			}
		}, nil},
		"though it failed": {CheckEffects, func(s *script) {
			s.end(Fail, s.begin(OpAsk, "", "a", 0))
			s.end(Reject, s.begin(OpAsk, "", "a", 0))
			s.did(OpEffect, "", "a", 0)
			s.did(OpEffect, "", "nobody asked", 0)
		}, []Rule{RuleOrigin}},
		"sums": {CheckUpdates, func(s *script) {
			s.state(OpTotal, "k", 100)
			s.did(OpAdd, "k", "", 5)
			s.end(Fail, s.begin(OpAdd, "k", "", 1000))
			s.did(OpAdd, "k", "", -7)
			s.read("k", 98)
			s.state(OpTotal, "k", 98)
			s.read("other", 0)
		}, nil},
		"a lost update that the only State shows": {CheckUpdates, func(s *script) {
			s.did(OpAdd, "k", "", 5)
			s.did(OpAdd, "k", "", 5)
			s.state(OpTotal, "k", 5)
		}, []Rule{RuleTotal}},
		"never more than there is": {CheckCapacity, func(s *script) {
			s.state(OpCapacity, "k", 2)
			s.did(OpTake, "k", "", 2)
			s.end(Reject, s.begin(OpTake, "k", "", 1))
			s.end(Info, s.begin(OpTake, "k", "", 1))
			give := s.begin(OpGive, "k", "", 2)
			s.did(OpTake, "k", "", 2)
			s.end(OK, give)
			s.did(OpTake, "of nobody knows how many", "", 2)
		}, nil},
		"sold twice before the capacity is stated": {CheckCapacity, func(s *script) {
			s.did(OpTake, "k", "", 1)
			s.did(OpTake, "k", "", 1)
			s.state(OpCapacity, "k", 1)
			s.state(OpCapacity, "k", 0)
		}, []Rule{RuleCapacity}},
		"an older one overwrites it, which the only State shows": {CheckVersions, func(s *script) {
			s.did(OpApply, "k", "", 3)
			s.state(OpVersion, "k", 2)
		}, []Rule{RuleOrigin, RuleVersion}},
		"a version between others out of nothing": {CheckVersions, func(s *script) {
			s.did(OpApply, "k", "", 1)
			read := s.begin(OpRead, "k", "", 0)
			s.did(OpApply, "k", "", 3)
			s.readEnds(read, 2)
		}, []Rule{RuleOrigin}},
		"a rolled-back value that is there in the end": {CheckReads, func(s *script) {
			s.state(OpValue, "k", 1)
			s.end(Fail, s.write(2))
			s.state(OpValue, "k", 2)
		}, []Rule{RuleOrigin}},
	} {
		t.Run(name, func(t *testing.T) {
			var s script
			tt.play(&s)
			v, err := tt.check(s.source())
			testbed.OK(t, err)
			if got := rulesOf(v); !slices.Equal(got, tt.want) || v.OK() != (len(tt.want) == 0) || v.Events != len(s.events) {
				t.Errorf("%v\nwant %q", v, tt.want)
			}
		})
	}
}

func rulesOf(v Verdict) (rules []Rule) {
	for _, found := range v.Violations {
		rules = append(rules, found.Rule)
	}
	return rules
}

// TestVerdictCounts: a history in which nothing was done differs from a good one.
func TestVerdictCounts(t *testing.T) {
	var s script
	s.did(OpAdd, "k", "", 1)
	s.end(Reject, s.begin(OpAdd, "k", "", 1))
	s.end(Info, s.begin(OpAdd, "k", "", 1))
	s.end(Fail, s.begin(OpAdd, "k", "", 1))
	s.begin(OpAdd, "k", "", 1)
	s.did(OpPublish, "k", "not judged here", 0)
	v, err := CheckUpdates(s.source())
	if err != nil || v.Done != 1 || v.Refused != 1 || v.Unknown != 2 || v.Events != 11 {
		t.Errorf("%+v, %v", v, err)
	}
	if want := "11 events: 1 done, 1 refused, 2 unknown; no violation"; v.String() != want {
		t.Errorf("%q, want %q", v, want)
	}
}

// TestEndOfNoCall: a history with a lost line is refused, and so is one that cannot
// be read.
func TestEndOfNoCall(t *testing.T) {
	for name, check := range map[string]verdictOf{"deliveries": CheckDeliveries, "effects": CheckEffects,
		"updates": CheckUpdates, "versions": CheckVersions, "capacity": CheckCapacity, "reads": CheckReads} {
		var s script
		s.add(Event{Kind: Grant, Op: OpAcquire, Key: "n", Token: 1}) // may stand alone
		s.end(OK, 7)
		if _, err := check(s.source()); err == nil || !strings.Contains(err.Error(), "call 7, which is not open") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := check(func(yield func(Event, error) bool) { yield(Event{}, errTorn) }); err != errTorn {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEndOfAnotherKind: only an acquire ends with a grant.
func TestEndOfAnotherKind(t *testing.T) {
	for name, check := range map[string]verdictOf{"tokens": tokens, "reads": CheckReads} {
		var s script
		s.done(OpWrite, "r", 11)
		s.end(Grant, s.invoke(OpWrite, "r", 10))
		if _, err := check(s.source()); err == nil {
			t.Errorf("%s: a write that ends with a grant is accepted", name)
		}
	}
}

// TestInFiles: the updates of one number by two processes are judged together.
func TestInFiles(t *testing.T) {
	var paths []string
	for lane, total := range []int64{5, 10} {
		path := filepath.Join(t.TempDir(), "history.jsonl")
		w, err := Create(path, Header{}, nil)
		testbed.OK(t, err)
		w.Invoke(Event{Lane: fmt.Sprint(lane), Op: OpAdd, Key: "k", Amount: 5}).OK("")
		w.Invoke(Event{Lane: fmt.Sprint(lane), Op: OpRead, Key: "k"}).EndWith(Event{Kind: OK, Amount: total})
		testbed.OK(t, w.Close())
		paths = append(paths, path)
	}
	if v, err := InFiles(CheckUpdates, paths...); err != nil || !v.OK() || v.Done != 4 {
		t.Errorf("%v, %v", v, err)
	}
	if v, err := InFiles(CheckUpdates, paths[1]); err != nil || v.Total != 1 {
		t.Errorf("half of it: %v, %v", v, err)
	}
	if _, err := InFiles(CheckUpdates, "nowhere.jsonl"); err == nil {
		t.Error("a missing file is no error")
	}
}

var errTorn = fmt.Errorf("torn")

// TestFieldsAreKept: the file keeps the fields that checkers use, and the end of a
// call repeats those of its invocation.
func TestFieldsAreKept(t *testing.T) {
	var file bytes.Buffer
	w, err := NewWriter(&file, Header{}, nil)
	testbed.OK(t, err)
	w.Invoke(Event{Lane: "A", Op: OpTake, Key: "k", ID: "a", Amount: 2, Stamp: 3}).OK("")
	w.Invoke(Event{Lane: "A", Op: OpRead, Key: "k"}).EndWith(Event{Kind: OK, ID: "b", Amount: 4, Stamp: 5})
	r, err := NewReader(&file)
	testbed.OK(t, err)
	var got []string
	for e, err := range r.Events() {
		testbed.OK(t, err)
		got = append(got, fmt.Sprint(e.Kind, e.Op, e.Key, e.ID, e.Amount, e.Stamp))
	}
	want := []string{"invoketakeka2 3", "oktakeka2 3", "invokereadk0 0", "okreadkb4 5"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
