package main

import (
	"os"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/history"
)

// judge reads the records of all three.
func (s *story) judge(t *testing.T) {
	var err error
	if s.events, err = merged(s.files()); err != nil {
		t.Fatal(err)
	}
	if s.report, err = history.CheckFiles(s.files()...); err != nil {
		t.Fatal(err)
	}
}

func merged(files []string) (events []history.Event, err error) {
	var readers []*history.Reader
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r, err := history.NewReader(f)
		if err != nil {
			return nil, err
		}
		readers = append(readers, r)
	}
	for e, err := range history.Merge(readers...) {
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}

// check checks a complete story. Other stories were skipped or have already
// failed.
func (s *story) check(t *testing.T, must func(t *testing.T)) {
	if s.report.Events == 0 {
		return
	}
	s.holds = t.Run("check/"+s.backend+" "+s.mode, func(t *testing.T) {
		must(t)
		if t.Failed() {
			t.Logf("A reported: %s\nB reported: %s\n%v", s.a.told(), s.b.told(), s.report)
		}
	})
}

// mustBeGuarded: B's withdrawal counts, A's does not, and A knows both and the reason.
func (s *story) mustBeGuarded(t *testing.T) {
	t.Helper()
	s.mustLearnOfItsLoss(t)
	if s.balance != opening-amountB {
		t.Errorf("the balance is %d, want %d", s.balance, opening-amountB)
	}
	if s.codeA != 1 || s.codeB != 0 {
		t.Errorf("exit codes of A and B are %d and %d, want 1 and 0", s.codeA, s.codeB)
	}
	if _, ok := s.a.find("committed"); ok {
		t.Error("A believes that it has committed")
	}
	if !s.report.OK() || s.report.Accepted == 0 {
		t.Error("the checker wants a history with accepted accesses and no violation")
	}
}

// mustBeRefusedByTheGuard requires that Postgres refused A, and reported both tokens.
func (s *story) mustBeRefusedByTheGuard(t *testing.T) {
	t.Helper()
	refused, _ := s.a.find("refused")
	first, _ := s.a.find("acquired")
	second, _ := s.b.find("acquired")
	want := stage{Stage: "refused", Token: first.Token, Seen: second.Token, Kind: interlock.Definite.String()}
	refused.Error = "" // for people
	if refused != want || first.Token >= second.Token {
		t.Errorf("A was refused with %+v, want %+v", refused, want)
	}
	if s.report.Rejected != 1 {
		t.Errorf("the history shows %d rejections, want 1", s.report.Rejected)
	}
}

// mustBeBroken requires that both committed, only one withdrawal counts, and the
// checker reports A's write.
func (s *story) mustBeBroken(t *testing.T) {
	t.Helper()
	s.mustLearnOfItsLoss(t)
	_, a := s.a.find("committed")
	_, b := s.b.find("committed")
	if !a || !b || s.balance != opening-amountA {
		t.Errorf("no update was lost: A committed: %v, B committed: %v, balance %d", a, b, s.balance)
	}
	if v := s.report.Violations; len(v) == 0 || v[0].Rule != history.RuleAccessOrder || v[0].Second.Lane != "A" {
		t.Errorf("the checker did not find A's late write")
	}
}

// mustLearnOfItsLoss requires that A's claim ended for a reason that a pause can have,
// and that B's did not end before it was released.
func (s *story) mustLearnOfItsLoss(t *testing.T) {
	t.Helper()
	lost, _ := s.a.find("lost")
	if !slices.Contains([]string{"expired", "lost", "session ended"}, lost.Cause) {
		t.Errorf("A got %q as the reason of its loss", lost.Cause)
	}
	if lost, ok := s.b.find("lost"); ok {
		t.Errorf("B lost its claim: %s", lost.Cause)
	}
}
