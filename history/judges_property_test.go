package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// A definition states the violations that a checker has to find, by a slow search
// over all calls for each call.
type definition struct {
	check  verdictOf
	random func(r *rand.Rand) []Event
	rules  int // that are violated in some random histories
	brute  func(all []span, say func(rule Rule, at int64))
}

var definitions = map[string]definition{
	"tokens":     {tokens, randomHistory, 4, bruteTokens},
	"deliveries": {CheckDeliveries, calls{OpMark, []string{OpPublish, OpDeliver, OpDeliver, OpDrain}}.random, 3, bruteDeliveries},
	"effects":    {CheckEffects, calls{OpEffect, []string{OpAsk, OpEffect}}.random, 3, bruteEffects},
	"updates":    {CheckUpdates, calls{OpTotal, []string{OpAdd, OpAdd, OpRead}}.random, 1, bruteUpdates},
	"versions":   {CheckVersions, calls{OpVersion, []string{OpApply, OpApply, OpRead}}.random, 3, bruteVersions},
	"capacity":   {CheckCapacity, calls{"", []string{OpTake, OpTake, OpGive}}.random, 1, bruteCapacity},
	"reads":      {CheckReads, calls{OpValue, []string{OpWrite, OpRead}}.random, 1, bruteReads},
}

// TestAgainstBruteForce compares each checker with its definition on random
// histories, many with violations and many without.
func TestAgainstBruteForce(t *testing.T) {
	for name, d := range definitions {
		t.Run(name, func(t *testing.T) {
			clean, broken := 0, map[Rule]int{}
			for seed := range uint64(5_000) {
				s := script{events: d.random(rand.New(rand.NewPCG(seed, 2)))}
				v, err := d.check(s.source())
				testbed.OK(t, err)
				var got, want []string
				for _, found := range v.Violations {
					got = append(got, fmt.Sprint(found.Rule, " at ", found.Second.Seq))
					broken[found.Rule]++
				}
				d.brute(spans(s.events), func(rule Rule, at int64) { want = append(want, fmt.Sprint(rule, " at ", at)) })
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					for _, e := range s.events {
						t.Logf("%+v", e)
					}
					t.Fatalf("seed %d:\n found %v\n want  %v", seed, got, want)
				}
				if len(want) == 0 {
					clean++
				}
			}
			if clean < 100 {
				t.Errorf("only %d histories were clean", clean)
			}
			if len(broken) != d.rules {
				t.Errorf("violated: %v", broken)
			}
			for rule, n := range broken {
				if n < 50 {
					t.Errorf("%s: violated only %d times", rule, n)
				}
			}
		})
	}
}

// calls are the calls of a random history.
type calls struct {
	state string // Op of the States
	ops   []string
}

// random interleaves four lanes, each with one call at a time, over one key and few IDs, versions and
// amounts.
func (c calls) random(r *rand.Rand) []Event {
	var s script
	s.state(OpCapacity, "k", 3)
	open := map[string]Event{}
	for range 3 + r.IntN(20) {
		lane := fmt.Sprintf("lane%d", r.IntN(4))
		n := 1 + r.Int64N(4)
		e, busy := open[lane]
		switch {
		case c.state != "" && r.IntN(12) == 0:
			s.state(c.state, "k", n)
		case !busy:
			e = Event{Lane: lane, Kind: Invoke, Op: c.ops[r.IntN(len(c.ops))], Key: "k", ID: fmt.Sprint(n),
				Stamp: n, Amount: n, Value: fmt.Sprint(n)}
			if e.Op == OpAdd {
				e.Amount -= 2
			}
			e.Seq = s.add(e)
			open[lane] = e
		default:
			kind := []Kind{OK, OK, OK, Fail, Info, Reject}[r.IntN(6)]
			end := Event{Lane: lane, Kind: kind, Cause: e.Seq, Stamp: e.Stamp, Amount: e.Amount, Value: e.Value}
			if e.Op == OpRead {
				end.Stamp, end.Amount, end.Value = n, r.Int64N(7)-1, fmt.Sprint(n)
			}
			s.add(end)
			delete(open, lane)
		}
	}
	return s.events
}

func (s span) ok() bool { return s.last.Kind == OK }

// undone reports whether s was definitely not done, as known at an instant.
func (s span) undone(at int64) bool {
	return (s.last.Kind == Fail || s.last.Kind == Reject) && s.end <= at
}

// maybe reports whether s may have been done by then.
func (s span) maybe(at int64) bool { return s.start < at && !s.undone(at) }

// of returns the calls of an operation, and withID those of an ID.
func of(all []span, op string) []span {
	return slices.DeleteFunc(slices.Clone(all), func(s span) bool { return s.call.Op != op })
}

func withID(all []span, id string) []span {
	return slices.DeleteFunc(slices.Clone(all), func(s span) bool { return s.call.ID != id })
}

// firstOK returns the end of the first call that was done, or never.
func firstOK(all []span) int64 {
	first := int64(never)
	for _, s := range all {
		if s.ok() {
			first = min(first, s.end)
		}
	}
	return first
}

var fewIDs = []string{"1", "2", "3", "4"}

func bruteDeliveries(all []span, say func(Rule, int64)) {
	publishes, deliveries := of(all, OpPublish), of(all, OpDeliver)
	tried := func(id string, by, at int64) bool { // by then, as known at an instant
		return slices.ContainsFunc(withID(deliveries, id), func(s span) bool { return s.start < by && s.maybe(at) })
	}
	began := func(id string) int64 { // first published
		first := int64(never)
		for _, p := range withID(publishes, id) {
			first = min(first, p.start)
		}
		return first
	}
	for _, id := range fewIDs {
		at := firstOK(withID(deliveries, id))
		acked := firstOK(withID(publishes, id))
		for _, drain := range of(all, OpDrain) {
			if drain.ok() && acked < drain.start && !asked(all, acked, drain) && !tried(id, drain.end, never) {
				say(RuleDelivered, drain.end)
			}
		}
		if at == never {
			continue
		}
		mine := withID(publishes, id)
		if began(id) > at {
			say(RuleOrigin, at)
		}
		if len(mine) > 0 && !slices.ContainsFunc(mine, func(p span) bool { return p.maybe(never) }) {
			say(RuleOrigin, at)
		}
		if began(id) < at && slices.ContainsFunc(fewIDs, func(other string) bool {
			return firstOK(withID(publishes, other)) < began(id) && !tried(other, at, at)
		}) {
			say(RuleKeyOrder, at)
		}
	}
}

// asked reports whether a drain that ended before this one covered the same message.
func asked(all []span, acked int64, drain span) bool {
	return slices.ContainsFunc(of(all, OpDrain), func(d span) bool { return d.ok() && d.end < drain.end && acked < d.start })
}

func bruteEffects(all []span, say func(Rule, int64)) {
	for _, id := range append(slices.Clone(fewIDs), "k") { // States have the ID k
		asks, effects := withID(of(all, OpAsk), id), withID(of(all, OpEffect), id)
		var took []int64
		unsure := false
		for _, e := range effects {
			if e.alone() || e.ok() {
				took = append(took, e.end)
			}
			unsure = unsure || !e.alone() && (e.last.Kind == Info || e.end == never)
		}
		slices.Sort(took)
		for i := range took[min(1, len(took)):] {
			say(RuleOnce, took[i+1])
		}
		if acked := firstOK(asks); acked < never && len(took) == 0 && !unsure {
			say(RuleEffect, acked)
		}
		if len(took) > 0 && len(asks) > 0 && !slices.ContainsFunc(asks, func(a span) bool { return a.maybe(never) }) {
			say(RuleOrigin, took[0])
		}
	}
}

// first reports whether no call or other State comes before a State.
func first(all []span, state span) bool {
	return !slices.ContainsFunc(all, func(s span) bool {
		return s.call.Op != OpCapacity && s.call.Seq < state.call.Seq
	})
}

func bruteUpdates(all []span, say func(Rule, int64)) {
	var before int64
	reads := of(all, OpRead)
	for _, s := range of(all, OpTotal) {
		if first(all, s) {
			before = s.last.Amount
			continue
		}
		s.start, s.last.Kind = s.end, OK
		reads = append(reads, s)
	}
	for _, read := range reads {
		if !read.ok() {
			continue
		}
		low, high := before, before
		for _, add := range of(all, OpAdd) {
			certain := add.ok() && add.end < read.start
			if certain || add.maybe(read.end) {
				low += min(0, add.call.Amount)
				high += max(0, add.call.Amount)
			}
			if certain {
				low += max(0, add.call.Amount)
				high += min(0, add.call.Amount)
			}
		}
		if read.last.Amount < low || read.last.Amount > high {
			say(RuleTotal, read.end)
		}
	}
}

func bruteVersions(all []span, say func(Rule, int64)) {
	known := func(by int64) (top int64) { // the highest that was definitely there
		for _, s := range all {
			if s.end < by && (s.ok() || s.alone() && s.call.Op == OpVersion) {
				top = max(top, s.last.Stamp)
			}
		}
		return top
	}
	stated := func(stamp, by int64) bool { // or read
		return slices.ContainsFunc(all, func(s span) bool {
			return s.end < by && s.last.Stamp == stamp && (s.ok() && s.call.Op == OpRead || s.alone() && s.call.Op == OpVersion)
		})
	}
	maybe := func(at int64, but span, fits func(stamp int64) bool) bool {
		return slices.ContainsFunc(of(all, OpApply), func(o span) bool {
			return o != but && o.maybe(at) && fits(o.call.Stamp)
		})
	}
	byEnd := slices.SortedFunc(slices.Values(all), func(a, b span) int { return int(min(a.end, 1e6) - min(b.end, 1e6)) })
	for _, s := range byEnd {
		isRead := s.call.Op == OpRead && s.ok()
		if s.alone() && s.call.Op == OpVersion {
			isRead, s.start = !first(all, s), s.end
			if !isRead {
				continue
			}
		}
		stamp := s.last.Stamp
		switch {
		case isRead && !stated(stamp, s.end) && !maybe(s.end, span{}, func(o int64) bool { return o == stamp }):
			say(RuleOrigin, s.end)
		case s.call.Op == OpApply && s.last.Kind == Reject:
			if stamp > known(s.end) && !maybe(s.end, s, func(o int64) bool { return o >= stamp }) {
				say(RuleRefusal, s.end)
			}
		}
		if (isRead || s.call.Op == OpApply && s.ok()) && stamp < known(s.start) {
			say(RuleVersion, s.end)
		}
	}
}

func bruteCapacity(all []span, say func(Rule, int64)) {
	for _, s := range of(all, OpGive) {
		surplus := int64(0)
		for _, o := range all {
			if o.call.Op == OpGive && o.ok() && o.end <= s.end {
				surplus += o.call.Amount
			}
			if o.call.Op == OpTake && o.maybe(s.end) {
				surplus -= o.call.Amount
			}
		}
		if s.ok() && surplus > 0 {
			say(RuleCapacity, s.end)
		}
	}
	for _, s := range all {
		if !(s.call.Op == OpTake && s.ok() || s.call.Op == OpGive && s.undone(never-1)) {
			continue
		}
		held := int64(0)
		for _, o := range all {
			if o.call.Op == OpTake && o.ok() && o.end <= s.end {
				held += o.call.Amount
			}
			if o.call.Op == OpGive && o.maybe(s.end) {
				held -= o.call.Amount
			}
		}
		if held > 3 {
			say(RuleCapacity, s.end)
		}
	}
}

func called(all []span, by int64) bool {
	return slices.ContainsFunc(all, func(s span) bool { return !s.alone() && s.start < by })
}

func bruteReads(all []span, say func(Rule, int64)) {
	for _, value := range fewIDs {
		begun, possible, first := int64(never), false, int64(never)
		for _, s := range all {
			if s.call.Op == OpValue && s.last.Value == value && !called(all, s.end) {
				begun, possible = min(begun, s.end), true
			}
			if s.call.Op == OpWrite && s.call.Value == value {
				begun, possible = min(begun, s.start), possible || s.maybe(never)
			}
		}
		for _, s := range all {
			read := s.call.Op == OpRead && s.ok() || s.call.Op == OpValue && called(all, s.end)
			if !read || s.last.Value != value {
				continue
			}
			if s.end < begun {
				say(RuleOrigin, s.end)
			} else {
				first = min(first, s.end)
			}
		}
		if first < never && !possible {
			say(RuleOrigin, first)
		}
	}
}
