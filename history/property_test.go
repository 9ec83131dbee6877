package history

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/interlock-dev/interlock"
)

// tokens is CheckTokens as the other checkers.
func tokens(events iter.Seq2[Event, error]) (Verdict, error) {
	report, err := CheckTokens(events)
	return Verdict{Findings: report.Findings}, err
}

// randomHistory interleaves a few lanes, each with one call at a time.
func randomHistory(r *rand.Rand) []Event {
	var s script
	ops := []string{OpAcquire, OpAcquire, OpEnter, OpRead, OpWrite, OpRebase}
	open := map[string]Event{}
	for range 4 + r.IntN(24) {
		lane := fmt.Sprintf("lane%d", r.IntN(4))
		if r.IntN(12) == 0 {
			s.add(randomAlone(r, lane))
			continue
		}
		e, busy := open[lane]
		if !busy {
			e = Event{Lane: lane, Kind: Invoke, Op: ops[r.IntN(len(ops))], Key: fmt.Sprintf("k%d", r.IntN(2)),
				Token: interlock.Token(1 + r.IntN(4)), Strict: r.IntN(4) == 0}
			if e.Op == OpAcquire {
				e.Owner, e.Token = lane, 0
			}
			e.Seq = s.add(e)
			open[lane] = e
			continue
		}
		if end, alive := randomEnd(r, e); alive {
			s.add(end)
			delete(open, lane)
		}
	}
	return s.events
}

// randomAlone returns an event that belongs to no call.
func randomAlone(r *rand.Rand, lane string) Event {
	e := Event{Lane: lane, Kind: State, Op: OpMark, Key: fmt.Sprintf("k%d", r.IntN(2)), Token: interlock.Token(1 + r.IntN(5))}
	if kind := []Kind{State, Grant, HandOver}[r.IntN(3)]; kind != State {
		e.Kind, e.Op, e.Owner = kind, OpAcquire, lane
	}
	return e
}

func randomEnd(r *rand.Rand, call Event) (end Event, alive bool) {
	end = Event{Lane: call.Lane, Op: call.Op, Key: call.Key, Owner: call.Owner, Token: call.Token, Cause: call.Seq, Kind: OK}
	switch n := r.IntN(10); {
	case n == 0:
		end.Kind = Fail
	case n == 1:
		end.Kind = Info
	case n == 2:
		return end, false // not yet, or never
	case n == 3 && call.Op != OpAcquire && call.Op != OpRebase:
		end.Kind, end.Seen = Reject, interlock.Token(1+r.IntN(5))
	case call.Op == OpAcquire:
		end.Token = interlock.Token(1 + r.IntN(5))
		end.Kind = []Kind{OK, Grant, HandOver}[r.IntN(3)]
	}
	return end, true
}

// span is one call of a history; its end is never if it has none. An event that
// stands alone is a span that began before the run.
type span struct {
	start, end int64
	call, last Event
}

const never = math.MaxInt64

func spans(events []Event) []span {
	var all []span
	for _, e := range events {
		if e.Kind == Invoke {
			s := span{start: e.Seq, end: never, call: e}
			for _, f := range events {
				if f.Kind != Invoke && f.Cause == e.Seq {
					s.end, s.last = f.Seq, f
				}
			}
			all = append(all, s)
		} else if e.Cause == 0 {
			all = append(all, span{end: e.Seq, call: e, last: e})
		}
	}
	return all
}

func (s span) granted() bool {
	return s.call.Op == OpAcquire && slices.Contains([]Kind{OK, Grant, HandOver}, s.last.Kind)
}
func (s span) access() bool   { return slices.Contains([]string{OpEnter, OpRead, OpWrite}, s.call.Op) }
func (s span) accepted() bool { return s.access() && s.last.Kind == OK }
func (s span) alone() bool    { return s.start == 0 }

// floor reports whether s is a reason to reject a lower token.
func (s span) floor() bool {
	return s.accepted() || s.call.Op == OpRebase && s.last.Kind == OK || s.call.Op == OpMark
}

func bruteTokens(all []span, say func(Rule, int64)) {
	for _, s := range all {
		var rule Rule
		switch {
		case s.granted():
			rule = bruteGrant(all, s)
		case s.accepted():
			rule = bruteAccess(all, s)
		case s.access() && s.last.Kind == Reject:
			rule = bruteReject(all, s)
		}
		if rule != "" {
			say(rule, s.end)
		}
	}
}

func bruteGrant(all []span, s span) Rule {
	start, first := s.start, s           // of one that stands alone the start is not known
	for i := len(all) - 1; i >= 0; i-- { // back through this owner's attempts to its last grant
		o := all[i]
		if o.alone() || o.call.Owner != s.call.Owner || o.call.Key != s.call.Key || o.end >= start {
			continue
		}
		if o.granted() {
			break
		}
		if o.last.Kind == Info {
			start = o.start
		}
	}
	for _, o := range all {
		if !o.granted() || o.call.Key != s.call.Key {
			continue
		}
		if o.end < start && o.last.Token > s.last.Token {
			return RuleGrantOrder
		}
		if o.last.Token == s.last.Token && o.end < first.end {
			first = o
		}
	}
	if first.call.Owner != s.call.Owner || s.last.Kind == HandOver && first.end < s.end {
		return RuleOneOwner
	}
	return ""
}

func bruteAccess(all []span, s span) Rule {
	for i, o := range all {
		if !o.floor() || o.call.Key != s.call.Key || o.end >= s.start || o.call.Token < s.call.Token ||
			o.call.Token == s.call.Token && !s.call.Strict {
			continue
		}
		if !rebased(all, i, s) {
			return RuleAccessOrder
		}
	}
	return ""
}

// rebased reports whether a rebase other than floor overlaps the time of both floor
// and s. One that is known to have failed at the end of s does not count.
func rebased(all []span, floor int, s span) bool {
	for i, r := range all {
		failed := r.last.Kind == Fail && r.end < s.end
		if i != floor && r.call.Op == OpRebase && r.call.Key == s.call.Key && !failed &&
			r.start < s.end && (r.end > all[floor].start || r.last.Kind == Info) {
			return true
		}
	}
	return false
}

func bruteReject(all []span, s span) Rule {
	if s.last.Seen < s.call.Token || s.last.Seen == s.call.Token && !s.call.Strict {
		return RuleRejection
	}
	for _, o := range all {
		if o.call.Op != OpAcquire && o.call.Seq < s.end && o.call.Key == s.call.Key && o.call.Token >= s.last.Seen {
			return ""
		}
	}
	return RuleRejection
}
