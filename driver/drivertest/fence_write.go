package drivertest

import (
	"strings"
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
