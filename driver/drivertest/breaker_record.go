package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// testBreaksNewestFirst lists the records of one name or of all, up to a limit.
func testBreaksNewestFirst(s *scene) {
	d := s.open()
	of := map[string][]driver.BreakRecord{}
	var all []driver.BreakRecord
	for i, name := range []string{lockName, "other", lockName, lockName + "x", lockName, "other"} {
		c := s.contender(s.open(), name).acquire()
		b := c.order()
		b.Reason = fmt.Sprint("reason ", i)
		record := s.mustBreak(d, c, b)
		of[name], all = append(of[name], record), append(all, record)
	}
	for _, records := range of {
		slices.Reverse(records)
	}
	slices.Reverse(all)
	other := s.open()
	for name, records := range of {
		s.mustHaveBroken(other, name, 10, records...)
	}
	s.mustHaveBroken(other, "", 10, all...)
	s.mustHaveBroken(other, "", 3, all[:3]...)
	s.mustHaveBroken(other, lockName, 2, of[lockName][:2]...)
	s.mustHaveBroken(other, lockName, 0)
	s.mustHaveBroken(other, "nobody's", 10)
}

// oddWords are unusual texts, some of them attempts to inject code.
var oddWords = []string{
	"restored \"yesterday\",\nключ \\ {}", "it's; drop table locks; --", "%s %d $(x) `x` ${1} $1 ?", " x ", "a:b/c|d\te\r\n",
	strings.Repeat("x", driver.MaxName), "a\x00b", "\xff\xfe",
}

// testBreaksAreData checks that reasons and names of operators are stored unchanged or
// rejected with nothing done.
func testBreaksAreData(s *scene) {
	d := s.open()
	for i, word := range oddWords {
		c := s.contender(s.open(), fmt.Sprint("data/", i)).acquire()
		b := c.order()
		b.Reason, b.By = word, word
		if i >= 6 {
			if _, ok, err := s.breaker(d).Break(s.Context(), b); err != nil {
				s.mustBeKind(err, interlock.Definite, interlock.Bug)
				s.mustHold(c)
				s.mustHaveBroken(d, c.req.Name, 10)
				c.release()
				continue
			} else if !ok {
				s.Fatalf("break with the reason %q: not done, and no error", word)
			}
			s.mustRecordBreak(s.breaks(d, c.req.Name, 1)[0], c, b)
			continue
		}
		s.mustHaveBroken(d, c.req.Name, 10, s.mustBreak(d, c, b))
	}
}

// testBreakNamesAreData checks that each name has its own record.
func testBreakNamesAreData(s *scene) {
	d := s.open()
	want := map[string]driver.BreakRecord{}
	holding := d
	for _, name := range oddNames {
		if s.Without&LoneBreaks != 0 {
			holding = s.open()
		}
		c := s.contender(holding, name)
		c.req.NoWait = true
		switch err := c.repeat(); {
		case errors.Is(err, interlock.ErrName):
			continue
		case err != nil:
			s.Fatalf("name %q: %v", name, err)
		}
		want[name] = s.mustBreak(d, c, c.order())
		c.release()
	}
	for name, record := range want {
		s.mustHaveBroken(d, name, 10, record)
	}
}

// testBreakRefuses checks that invalid requests are rejected.
func testBreakRefuses(s *scene) {
	d := s.open()
	holder := s.contender(s.open(), lockName).acquire()
	long := strings.Repeat("x", driver.MaxName+1)
	for _, change := range []func(*driver.Break){
		func(b *driver.Break) { b.Name = "" },
		func(b *driver.Break) { b.Name = long },
		func(b *driver.Break) { b.Owner = "" },
		func(b *driver.Break) { b.Reason = "" },
		func(b *driver.Break) { b.Reason = long },
		func(b *driver.Break) { b.By = "" },
		func(b *driver.Break) { b.By = long },
	} {
		b := holder.order()
		change(&b)
		_, ok, err := s.breaker(d).Break(s.Context(), b)
		if ok {
			s.Fatalf("it was done: %+v", b)
		}
		s.mustBeKind(err, interlock.Bug)
	}
	s.mustHold(holder)
	s.mustHaveBroken(d, "", 10)
	holder.release()
}
