package history

import (
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// script builds histories by hand: each call appends one event.
type script struct{ events []Event }

func (s *script) add(e Event) int64 {
	e.Seq = int64(len(s.events) + 1)
	e.Mono = e.Seq
	if e.Lane == "" {
		e.Lane = "A"
	}
	s.events = append(s.events, e)
	return e.Seq
}

func (s *script) invoke(op, key string, token interlock.Token) int64 {
	return s.add(Event{Kind: Invoke, Op: op, Key: key, Token: token})
}

func (s *script) end(kind Kind, cause int64) int64 { return s.add(Event{Kind: kind, Cause: cause}) }

func (s *script) grant(cause int64, token interlock.Token, owner string) int64 {
	return s.add(Event{Kind: Grant, Op: OpAcquire, Cause: cause, Key: "n", Token: token, Owner: owner})
}

// done appends an operation that was accepted at once.
func (s *script) done(op, key string, token interlock.Token) int64 {
	return s.end(OK, s.invoke(op, key, token))
}

func (s *script) source() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for _, e := range s.events {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func TestRules(t *testing.T) {
	type want struct {
		rule          Rule
		first, second int64
	}
	tests := map[string]struct {
		play func(s *script)
		want []want
	}{
		"grants in order": {func(s *script) {
			s.grant(s.invoke(OpAcquire, "n", 0), 10, "a")
			s.grant(s.invoke(OpAcquire, "n", 0), 11, "b")
		}, nil},
		"grant below an earlier one": {func(s *script) {
			s.grant(s.invoke(OpAcquire, "n", 0), 11, "a")
			s.grant(s.invoke(OpAcquire, "n", 0), 10, "b")
		}, []want{{RuleGrantOrder, 2, 4}}},
		"one token for two owners, in order": {func(s *script) {
			s.grant(s.invoke(OpAcquire, "n", 0), 10, "a")
			s.grant(s.invoke(OpAcquire, "n", 0), 10, "b")
		}, []want{{RuleOneOwner, 2, 4}}},
		"accepted in order, equal tokens too": {func(s *script) {
			s.done(OpEnter, "r", 10)
			s.done(OpWrite, "r", 10)
			s.done(OpRead, "r", 11)
			s.done(OpWrite, "other", 1)
		}, nil},
		"a stale write is accepted": {func(s *script) {
			s.done(OpEnter, "r", 11)
			s.done(OpWrite, "r", 10)
		}, []want{{RuleAccessOrder, 2, 4}}},
		"a strict guard accepts a token twice": {func(s *script) {
			s.done(OpEnter, "r", 10)
			s.end(OK, s.add(Event{Kind: Invoke, Op: OpEnter, Key: "r", Token: 10, Strict: true}))
		}, []want{{RuleAccessOrder, 2, 4}}},
		"refused without reason": {func(s *script) {
			s.done(OpWrite, "r", 10)
			s.add(Event{Kind: Reject, Cause: s.invoke(OpWrite, "r", 11), Seen: 10})
		}, []want{{RuleRejection, 3, 4}}},
		"refused for a token that nobody presented": {func(s *script) {
			s.done(OpWrite, "r", 10)
			s.add(Event{Kind: Reject, Cause: s.invoke(OpWrite, "r", 9), Seen: 12})
		}, []want{{RuleRejection, 3, 4}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var s script
			tt.play(&s)
			report, err := CheckTokens(s.source())
			testbed.OK(t, err)
			var got []want
			for _, v := range report.Violations {
				got = append(got, want{v.Rule, v.First.Seq, v.Second.Seq})
				if !strings.Contains(v.Text, v.First.String()) || !strings.Contains(v.Text, v.Second.String()) {
					t.Errorf("the sentence does not name both events: %s", v)
				}
			}
			if !slices.Equal(got, tt.want) || report.Total != len(tt.want) {
				t.Errorf("found %v, want %v\n%v", got, tt.want, report)
			}
		})
	}
}

func TestReportCounts(t *testing.T) {
	var s script
	s.grant(s.invoke(OpAcquire, "n", 0), 10, "a")
	s.done(OpEnter, "r", 10)
	s.done(OpWrite, "r", 10)
	s.done(OpWrite, "r", 0)
	s.add(Event{Kind: Reject, Cause: s.invoke(OpWrite, "r", 9), Seen: 10})
	s.end(Info, s.invoke(OpWrite, "r", 11))
	s.invoke(OpWrite, "r", 12)
	got, err := CheckTokens(s.source())
	testbed.OK(t, err)
	want := Report{Events: 13, Names: 1, Resources: 1, Grants: 1, Accepted: 2, Rejected: 1, Unknown: 2, Unclaimed: 1}
	if got.String() != want.String() || !got.OK() {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestAnEndWithoutACallIsAnError(t *testing.T) {
	var s script
	s.end(OK, s.done(OpWrite, "r", 1)-1)
	if _, err := CheckTokens(s.source()); err == nil {
		t.Error("a call that ended twice was accepted")
	}
}

func TestViolationsAreBounded(t *testing.T) {
	var s script
	s.done(OpWrite, "r", 2)
	for range maxListed + 5 {
		s.done(OpWrite, "r", 1)
	}
	report, err := CheckTokens(s.source())
	if err != nil || report.Total != maxListed+5 || len(report.Violations) != maxListed {
		t.Errorf("total %d, listed %d, %v", report.Total, len(report.Violations), err)
	}
}

func TestADeadWaiterDoesNotKeepEveryGrant(t *testing.T) {
	var s script
	s.invoke(OpAcquire, "n", 0) // never ends
	for i := range 5 * maxRecent {
		s.grant(s.invoke(OpAcquire, "n", 0), interlock.Token(i+1), "a")
	}
	c := &checker{names: map[string]*name{}, resources: map[string]*resource{}}
	_, err := walk(s.source(), &Verdict{}, c, OpAcquire)
	testbed.OK(t, err)
	n := c.names["n"]
	if len(n.recent) > maxRecent || len(n.order) > maxRecent || c.report.Unknown != 1 {
		t.Errorf("kept %d grants in %d places, %d calls without an end", len(n.recent), len(n.order), c.report.Unknown)
	}
}
