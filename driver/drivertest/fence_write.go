package drivertest

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testWritesAreAppliedWithTheMark checks that all writes are applied, for any values.
func testWritesAreAppliedWithTheMark(s *fenceScene) {
	const binary = "\x00\xff binary\r\n"
	s.mustEnter(s.token(0, 0), put("old", "x"), put("doomed", "x"), put("kept", "x"))
	s.mustEnter(s.token(0, 0), put("binary", binary), put("old", "new"), put("empty", ""),
		driver.Write{Key: "nil"}, driver.Write{Key: "doomed", Value: []byte("ignored"), Delete: true},
		driver.Write{Key: "never there", Delete: true}, put("ключ/{1}\n", "odd"))
	for key, want := range map[string]string{
		"binary": binary, "old": "new", "empty": "", "nil": "", "kept": "x", "ключ/{1}\n": "odd",
	} {
		s.mustRead(key, want)
	}
	s.mustNotExist("doomed", "never there")
	s.mustHaveMark(resource, s.token(0, 0))

	value := []byte("mine")
	s.mustEnter(s.token(1, 0), driver.Write{Key: "kept", Value: value})
	copy(value, "used")
	s.mustRead("kept", "mine")
}

// testRefusalWritesNothing checks the first write and a later one.
func testRefusalWritesNothing(s *fenceScene) {
	s.mustEnter(s.token(1, 0), put("a", "x"), put("b", "x"))
	err := s.enter(s.token(0, 0), put("a", "late"), driver.Write{Key: "b", Delete: true}, put("c", "late"))
	s.mustBeStale(err, resource, s.token(1, 0), s.token(0, 0))
	s.mustRead("a", "x")
	s.mustRead("b", "x")
	s.mustNotExist("c")
}

// testInvalidWritesChangeNothing: a store may reject a repeated key and must reject an
// empty one. Then no part of the step has an effect.
func testInvalidWritesChangeNothing(s *fenceScene) {
	before, after := s.token(0, 0), s.token(1, 0)
	s.mustEnter(before, put("data", "before"))
	for _, w := range []driver.Write{put("", "x"), {Key: "", Delete: true}} {
		s.mustFail(s.enter(after, put("data", "after"), w), interlock.Bug, nil)
		s.mustHaveMark(resource, before)
		s.mustRead("data", "before")
	}
	err := s.enter(after, put("data", "first"), put("twice", "1"), put("twice", "2"), put("gone", "1"), driver.Write{Key: "gone", Delete: true})
	if err == nil {
		s.mustRead("data", "first")
		s.mustRead("twice", "2")
		s.mustNotExist("gone")
		s.mustHaveMark(resource, after)
		return
	}
	if kind := interlock.Kind(err); kind != interlock.Definite && kind != interlock.Bug {
		s.Fatalf("a key that is written twice: %v (%v)", err, kind)
	}
	s.mustRead("data", "before")
	s.mustNotExist("twice", "gone")
	s.mustHaveMark(resource, before)
}

// oddNames are accepted or rejected with ErrName, but never confused with each other.
var oddNames = []string{
	"a", "A", "é", "e\u0301", "a/b", "a/b/", "/a", "a:b", "a{b}c", "{}", "}{", "{a", "a%2Fb", "a%", "ключ", "a b", "a\nb", "a*", "a?", "[a]", "\\",
	"..", ".", "'; drop table x; --", "$(x)", "\x00", "a\x00b", "\xff\xfe", "interlock", "interlock.base",
	"a:0000000000000000001", "a:0000000000000000000", strings.Repeat("x", driver.MaxName),
}

// testResourcesAreData checks that each resource has its own mark and records. The
// tokens fall, so a resource that shared a mark would be rejected.
func testResourcesAreData(s *fenceScene) {
	tokens := map[string]interlock.Token{}
	taken := s.eachName(func(i int, name string) error {
		tokens[name] = s.token(int64(-i), i)
		return s.store.Enter(s.Context(), driver.Raise{Resource: name, Token: tokens[name]}, put("data/"+name, name))
	})
	for i, name := range taken {
		if i%2 == 0 {
			s.mustRebase(name, tokens[name]+1)
			tokens[name]++
		}
	}
	for i, name := range taken {
		s.mustHaveMark(name, tokens[name])
		s.mustRead("data/"+name, name)
		if n := len(s.data.Rebases(s.T, name)); n != (i+1)%2 {
			s.Fatalf("resource %q has %d records of a rebase", name, n)
		}
	}
	for _, name := range []string{"", strings.Repeat("x", driver.MaxName+1)} {
		s.mustFail(s.store.Enter(s.Context(), driver.Raise{Resource: name, Token: s.token(0, 0)}), interlock.Bug, interlock.ErrName)
		_, err := s.store.Mark(s.Context(), name)
		s.mustFail(err, interlock.Bug, interlock.ErrName)
		_, err = s.store.Rebase(s.Context(), name, 0, "a reason", "an operator")
		s.mustFail(err, interlock.Bug, interlock.ErrName)
	}
}

// testResourcesAreNotKeys checks that a resource is independent of a key of the same
// name, and that resources may share keys.
func testResourcesAreNotKeys(s *fenceScene) {
	enter := func(resource string, token interlock.Token, writes ...driver.Write) {
		s.Helper()
		if err := s.store.Enter(s.Context(), driver.Raise{Resource: resource, Token: token}, writes...); err != nil {
			s.Fatalf("enter %q: %v", resource, err)
		}
	}
	enter("one", s.token(9, 0), put("one", "by one"), put("two", "by one"))
	enter("two", s.token(1, 0), put("one", "by two"))
	s.mustRead("one", "by two")
	s.mustRead("two", "by one")
	enter("two", s.token(1, 0), driver.Write{Key: "one", Delete: true}, driver.Write{Key: "two", Delete: true})
	s.mustHaveMark("one", s.token(9, 0))
	s.mustHaveMark("two", s.token(1, 0))
	enter("one", s.token(9, 0), put("two", "again"))
	s.mustRebase("two", 0)
	s.mustRead("two", "again")
	s.mustNotExist("one")
	s.mustHaveMark("one", s.token(9, 0))
}

// testMarkHasSourceAndTime checks that every process reads who raised the mark and when,
// and that a refusal changes neither.
func testMarkHasSourceAndTime(s *fenceScene) {
	if m := s.mark(resource); m != (driver.Mark{}) {
		s.Fatalf("the mark of a resource that nothing entered: %+v", m)
	}
	const source = "worker \"7\"\n на mail"
	raise := driver.Raise{Resource: resource, Token: s.token(1, 3), Source: source}
	testbed.OK(s, s.store.Enter(s.Context(), raise))
	was := s.mark(resource)
	if was.Token != raise.Token || was.Source != source || time.Since(was.Raised).Abs() > 5*time.Minute {
		s.Fatalf("the mark is %+v", was)
	}
	raise.Token, raise.Source = s.token(1, 2), "another"
	s.mustBeStale(s.store.Enter(s.Context(), raise), resource, s.token(1, 3), s.token(1, 2))
	s.store = s.open()
	if m := s.mark(resource); m.Token != was.Token || m.Source != was.Source || !m.Raised.Equal(was.Raised) {
		s.Fatalf("the mark is %+v, was %+v", m, was)
	}
}

// testRebaseDown checks that tokens down to the new mark are admitted again, and that
// the record has the reason and the operator.
func testRebaseDown(s *fenceScene) {
	const reason, by = "restored \"yesterday\",\nключ \\ {}", "op's"
	high, low := s.token(9, 3), s.token(-9, 1)
	err := s.store.Enter(s.Context(), driver.Raise{Resource: resource, Token: high, Source: "a mistake"}, put("data", "x"))
	testbed.OK(s, err)
	was, err := s.store.Rebase(s.Context(), resource, low, reason, by)
	if err != nil || was.Token != high || was.Source != "a mistake" || was.Raised.IsZero() {
		s.Fatalf("it replaced %+v, %v", was, err)
	}
	s.mustRead("data", "x")
	if m := s.mark(resource); m.Token != low || m.Source != driver.RebaseSource(by, reason) || time.Since(m.Raised).Abs() > 5*time.Minute {
		s.Fatalf("the mark is %+v", m)
	}
	s.mustBeStale(s.enter(low-1), resource, low, low-1)
	s.mustEnter(low)
	s.mustEnter(low + 1)
	s.mustRebase(resource, low)
	s.mustRecord(resource, Rebased{high, low, reason, by}, Rebased{low + 1, low, "a reason", "an operator"})
}

func (s *fenceScene) mustRecord(resource string, want ...Rebased) {
	s.Helper()
	if got := s.data.Rebases(s.T, resource); !slices.Equal(got, want) {
		s.Fatalf("recorded for %q: %+v, want %+v", resource, got, want)
	}
}

// testRebaseUp checks that tokens below the new mark are rejected, whether or not a
// token had entered before.
func testRebaseUp(s *fenceScene) {
	low, high := s.token(0, 5), s.token(0, 6)
	if was := s.mustRebase(resource, low); was.Token != 0 {
		s.Fatalf("nothing had entered, and it replaced %+v", was)
	}
	s.mustBeStale(s.enter(low-1, put("data", "x")), resource, low, low-1)
	s.mustEnter(low)
	if was := s.mustRebase(resource, high); was.Token != low {
		s.Fatalf("it replaced %+v, want %d", was, low)
	}
	s.mustBeStale(s.enter(low, put("data", "x")), resource, high, low)
	s.mustNotExist("data")
	s.mustEnter(high)
	s.mustRecord(resource, Rebased{0, low, "a reason", "an operator"}, Rebased{low, high, "a reason", "an operator"})
}

// testRebaseToNone checks that any token enters again, also a strict one.
func testRebaseToNone(s *fenceScene) {
	s.mustEnter(s.token(0, 0))
	s.mustRebase(resource, 0)
	s.mustHaveMark(resource, 0)
	first := newToken(s.T, 1, 0)
	raise := driver.Raise{Resource: resource, Token: first, Strict: true}
	if err := s.store.Enter(s.Context(), raise, put("data", "x")); err != nil {
		s.Fatalf("the smallest token after a rebase to none: %v", err)
	}
	s.mustRead("data", "x")
	s.mustHaveMark(resource, first)
	s.mustRecord(resource, Rebased{s.token(0, 0), 0, "a reason", "an operator"})
}

// testRebaseRefuses checks that tokens that Enter rejects change neither mark nor record.
func testRebaseRefuses(s *fenceScene) {
	s.mustEnter(s.token(0, 0))
	far := newToken(s.T, interlock.CounterAt(time.Now().Add(interlock.MaxAhead+time.Hour)), 0)
	for _, to := range []interlock.Token{far, math.MaxInt64} {
		_, err := s.store.Rebase(s.Context(), resource, to, "a reason", "an operator")
		s.mustFail(err, interlock.Definite, interlock.ErrImplausibleToken)
	}
	for _, to := range []interlock.Token{-1, math.MinInt64, 1, interlock.MaxSub} {
		_, err := s.store.Rebase(s.Context(), resource, to, "a reason", "an operator")
		s.mustFail(err, interlock.Bug, nil)
	}
	s.mustHaveMark(resource, s.token(0, 0))
	s.mustRecord(resource)
	near := newToken(s.T, interlock.CounterAt(time.Now().Add(interlock.MaxAhead-time.Hour)), 0)
	s.mustRebase(resource, near)
	s.mustRecord(resource, Rebased{s.token(0, 0), near, "a reason", "an operator"})
}

// testRebaseCompetition checks that each of several concurrent rebases reports and
// records the mark of the one before it.
func testRebaseCompetition(s *fenceScene) {
	const operators = 6
	first := s.token(-1, 0)
	s.mustEnter(first)
	var mu sync.Mutex
	told := map[interlock.Token]interlock.Token{}
	s.atOnce(operators, func(i int, f driver.Fence) error {
		to := s.token(int64(i*5%operators), 1)
		was, err := retried(func() (driver.Mark, error) { return f.Rebase(s.Context(), resource, to, "a reason", "an operator") })
		mu.Lock()
		defer mu.Unlock()
		told[to] = was.Token
		return err
	})
	from, records := first, s.data.Rebases(s.T, resource)
	for _, r := range records {
		if r.From != from || told[r.To] != r.From {
			s.Fatalf("a rebase from %d to %d is recorded, after one to %d; the operator got the answer that it was from %d",
				r.From, r.To, from, told[r.To])
		}
		from = r.To
	}
	if len(records) != operators {
		s.Fatalf("%d rebases are recorded: %+v", len(records), records)
	}
	s.mustHaveMark(resource, from)
}

// testFenceContextAlreadyEnded checks that the cause is returned and nothing was done.
func testFenceContextAlreadyEnded(s *fenceScene) {
	s.mustEnter(s.token(0, 0))
	ctx, cause := endedContext(s.T)
	raise := driver.Raise{Resource: resource, Token: s.token(1, 0)}
	s.mustFail(s.store.Enter(ctx, raise, put("data", "x")), interlock.Definite, cause)
	_, err := s.store.Mark(ctx, resource)
	s.mustFail(err, interlock.Definite, cause)
	_, err = s.store.Rebase(ctx, resource, 0, "a reason", "an operator")
	s.mustFail(err, interlock.Definite, cause)
	s.mustHaveMark(resource, s.token(0, 0))
	s.mustNotExist("data")
	s.mustRecord(resource)
}

// testLostReplyToEnter checks that a repetition converges.
func testLostReplyToEnter(s *fenceScene) {
	s.mustEnter(s.token(0, 0), put("data", "before"), put("doomed", "x")) // the connection is open
	enter := func(ctx context.Context) error {
		return s.store.Enter(ctx, driver.Raise{Resource: resource, Token: s.token(1, 0)},
			put("data", "after"), driver.Write{Key: "doomed", Delete: true})
	}
	s.loseReply(enter)
	s.eventuallyHolds("data", "after")
	s.persist("enter again", enter)
	s.mustHaveMark(resource, s.token(1, 0))
	s.mustRead("data", "after")
	s.mustNotExist("doomed")
}

// testLostReplyToStrictEnter checks that a repetition is admitted or finds its own token.
func testLostReplyToStrictEnter(s *fenceScene) {
	s.mustEnter(s.token(0, 0)) // the connection is open
	raise := driver.Raise{Resource: resource, Token: s.token(1, 0), Strict: true}
	enter := func(ctx context.Context) error { return s.store.Enter(ctx, raise, put("data", "once")) }
	s.loseReply(enter)
	s.eventuallyHolds("data", "once")
	s.persist("enter again", func(ctx context.Context) error {
		err := enter(ctx)
		if errors.Is(err, interlock.ErrStaleToken) {
			s.mustBeStale(err, resource, raise.Token, raise.Token)
			return nil
		}
		return err
	})
	s.mustHaveMark(resource, raise.Token)
	s.mustRead("data", "once")
}

// eventuallyHolds waits until a write without a reply has taken effect.
func (s *fenceScene) eventuallyHolds(key, value string) {
	s.Helper()
	s.persistUntil("write "+key, func(context.Context) (bool, error) {
		got, ok := s.data.Get(s.T, key)
		return ok && string(got) == value, nil
	})
}

// testLostReplyToRebase checks that a repetition converges and the records are correct.
func testLostReplyToRebase(s *fenceScene) {
	high, low := s.token(1, 0), s.token(0, 0)
	s.mustEnter(high)
	s.mustRebase("another", low) // every request of a first call has been answered
	rebase := func(ctx context.Context) error {
		_, err := s.store.Rebase(ctx, resource, low, "a reason", "an operator")
		return err
	}
	s.loseReply(rebase)
	s.persistUntil("record the rebase", func(context.Context) (bool, error) {
		return len(s.data.Rebases(s.T, resource)) > 0, nil
	})
	s.persist("rebase again", rebase)
	s.mustHaveMark(resource, low)
	for i, r := range s.data.Rebases(s.T, resource) {
		want := Rebased{low, low, "a reason", "an operator"}
		if i == 0 {
			want.From = high
		}
		if r != want {
			s.Fatalf("record %d is %+v, want %+v", i, r, want)
		}
	}
}
