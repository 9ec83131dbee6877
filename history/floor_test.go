package history

import (
	"github.com/interlock-dev/interlock/internal/testbed"
	"slices"
	"testing"
)

// TestFloors: events other than accesses and grants by calls that set the lowest
// token that may be accepted or granted.
func TestFloors(t *testing.T) {
	mark := Event{Kind: State, Op: OpMark, Key: "r", Token: 100}
	for name, tt := range map[string]struct {
		play func(s *script)
		want []Rule
	}{
		"a rebase that failed changes nothing": {func(s *script) {
			s.done(OpWrite, "r", 100)
			s.end(Fail, s.invoke(OpRebase, "r", 5))
			s.done(OpWrite, "r", 50)
		}, []Rule{RuleAccessOrder}},
		"what was accepted during a rebase that failed counts": {func(s *script) {
			rebase := s.invoke(OpRebase, "r", 5)
			s.done(OpWrite, "r", 100)
			s.end(Fail, rebase)
			s.done(OpWrite, "r", 50)
		}, []Rule{RuleAccessOrder}},
		"what was accepted during a rebase that was done does not": {func(s *script) {
			rebase := s.invoke(OpRebase, "r", 5)
			s.done(OpWrite, "r", 100)
			s.end(OK, rebase)
			s.done(OpWrite, "r", 50)
		}, nil},
		"a rebase is a floor": {func(s *script) {
			s.done(OpRebase, "r", 100)
			s.done(OpWrite, "r", 50)
		}, []Rule{RuleAccessOrder}},
		"of two rebases at a time either may be the last": {func(s *script) {
			a, b := s.invoke(OpRebase, "r", 100), s.invoke(OpRebase, "r", 5)
			s.end(OK, a)
			s.end(OK, b)
			s.done(OpWrite, "r", 50)
		}, nil},
		"a mark from before is a floor": {func(s *script) {
			s.add(mark)
			s.done(OpWrite, "r", 50)
		}, []Rule{RuleAccessOrder}},
		"a mark from before that comes after a rebase is none": {func(s *script) {
			s.done(OpRebase, "r", 5)
			s.add(mark)
			s.done(OpWrite, "r", 50)
		}, nil},
		"a hand-over within one owner makes a new token": {func(s *script) {
			s.grant(s.invoke(OpAcquire, "n", 0), 4096, "p")
			s.add(Event{Kind: HandOver, Cause: s.invoke(OpAcquire, "n", 0), Token: 4096, Owner: "p"})
			s.add(Event{Kind: HandOver, Cause: s.invoke(OpAcquire, "n", 0), Token: 4097, Owner: "p"})
		}, []Rule{RuleOneOwner}},
		"grants that stand alone are remembered": {func(s *script) {
			s.add(Event{Kind: Grant, Key: "n", Owner: "a", Token: 5})
			s.add(Event{Kind: Grant, Key: "n", Owner: "b", Token: 6})
			s.add(Event{Kind: HandOver, Key: "n", Owner: "c", Token: 5})
		}, []Rule{RuleOneOwner}},
	} {
		t.Run(name, func(t *testing.T) {
			var s script
			tt.play(&s)
			report, err := CheckTokens(s.source())
			testbed.OK(t, err)
			var got []Rule
			for _, v := range report.Violations {
				got = append(got, v.Rule)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("found %v, want %v\n%v", got, tt.want, report)
			}
		})
	}
}
