package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testReplaceComparesAndSets checks that a state is replaced only under its own stamp,
// of which every byte counts.
func testReplaceComparesAndSets(s *versionsScene) {
	first, second := state(1<<53, "ab"), state(1<<53+1, "b")
	s.mustReplace(driver.Stamp{Version: 1}, second, driver.VersionStale, driver.Versioned{}) // a missing state is zero
	s.mustReplace(driver.Stamp{}, first, driver.VersionApplied, first)
	s.mustReplace(driver.Stamp{}, first, driver.VersionDuplicate, first)
	s.mustReplace(driver.Stamp{}, second, driver.VersionStale, first)
	for _, other := range []driver.Stamp{{Version: 1<<53 - 1, Tie: "ab"}, {Version: 1 << 53, Tie: "a"}, {Version: 1 << 53, Tie: "abc"},
		{Version: 1 << 53}, {Version: 1 << 53, Tie: "ab\x01"}, {Version: 1, Tie: "ab"}} {
		s.mustReplace(other, second, driver.VersionStale, first)
	}
	s.mustReplace(first.Stamp, second, driver.VersionApplied, second)
	s.mustReplace(first.Stamp, second, driver.VersionDuplicate, second)
	s.mustReplace(first.Stamp, state(1<<53+1, "c"), driver.VersionStale, second)
	end := terminal(state(1<<53+2, ""))
	s.mustReplace(second.Stamp, end, driver.VersionApplied, end)
	s.mustReplace(second.Stamp, state(1<<53+3, ""), driver.VersionTerminal, end)
}

// testReplaceLosesNoUpdate has writers in several processes add to a counter.
func testReplaceLosesNoUpdate(s *versionsScene) {
	const writers, each = 8, 10
	s.atOnce(writers, func(i int, store driver.Versions) error {
		for range each {
			if err := s.count(store, fmt.Sprint("writer ", i)); err != nil {
				return err
			}
		}
		return nil
	})
	v, err := s.store.Get(s.Context(), entity)
	if err != nil || len(v.Data) != writers*each || v.Stamp.Version != writers*each {
		s.Fatalf("%d of %d updates are left, at %v, %v", len(v.Data), writers*each, v.Stamp, err)
	}
}

// count adds one byte and repeats until it succeeds.
func (s *versionsScene) count(store driver.Versions, tie string) error {
	for {
		was, err := store.Get(s.Context(), entity)
		if err != nil {
			return err
		}
		next := driver.Versioned{Stamp: driver.Stamp{Version: was.Stamp.Version + 1, Tie: tie}, Data: append(was.Data, 'x')}
		switch outcome, _, err := store.Replace(s.Context(), entity, was.Stamp, next); {
		case err != nil:
			return err
		case outcome == driver.VersionApplied:
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

// testStateDataIsData checks any bytes up to the limit, and that other states stay.
func testStateDataIsData(s *versionsScene) {
	long := bytes.Repeat([]byte("0123456789abcde\xff"), driver.MaxValue/16)
	for i, data := range []string{"", "x", "\x00\xff binary\r\n", "{\"a\": [1]}", "'; drop table x; --", string(long), "", "short again"} {
		v := driver.Versioned{Stamp: driver.Stamp{Version: int64(1 + i), Tie: "a\n \"'"}, Data: []byte(data)}
		s.mustApply(v, driver.VersionApplied, v)
		s.mustApply(v, driver.VersionDuplicate, v)
	}
	mine := state(20, "")
	s.mustApply(mine, driver.VersionApplied, mine)
	copy(mine.Data, "used")
	read, err := s.store.Get(s.Context(), entity)
	testbed.OK(s, err)
	copy(read.Data, "read")
	s.mustHave(entity, state(20, ""))
}

// testStateNamesAreData checks that each name has its own state. The versions fall, so a
// name that shared a state would be stale.
func testStateNamesAreData(s *versionsScene) {
	states := map[string]driver.Versioned{}
	taken := s.eachName(func(i int, name string) error {
		v := state(int64(1000-i), name[:1])
		if v.Check() != nil {
			v = state(int64(1000-i), "")
		}
		states[name] = v
		_, _, err := s.store.Apply(s.Context(), name, v)
		return err
	})
	for _, name := range taken {
		s.mustHave(name, states[name])
	}
	for _, name := range []string{"", strings.Repeat("x", driver.MaxName+1)} {
		_, _, err := s.store.Apply(s.Context(), name, state(1, ""))
		s.mustFail(err, interlock.Bug, interlock.ErrName)
		_, _, err = s.store.Replace(s.Context(), name, driver.Stamp{}, state(1, ""))
		s.mustFail(err, interlock.Bug, interlock.ErrName)
		_, err = s.store.Get(s.Context(), name)
		s.mustFail(err, interlock.Bug, interlock.ErrName)
	}
}

// testStateThatCannotBeIsABug checks that invalid states are a Bug and change nothing.
func testStateThatCannotBeIsABug(s *versionsScene) {
	s.mustApply(state(5, ""), driver.VersionApplied, state(5, ""))
	for _, bad := range []driver.Versioned{
		{}, state(0, "a"), state(-1, ""),
		state(9, strings.Repeat("x", driver.MaxTie+1)), state(9, "a\x00b"), state(9, "\xff"),
		{Stamp: driver.Stamp{Version: 9}, Data: make([]byte, driver.MaxValue+1)},
		{Stamp: driver.Stamp{Version: 9}, Deleted: true, Data: []byte("x")},
	} {
		_, _, err := s.store.Apply(s.Context(), entity, bad)
		s.mustFail(err, interlock.Bug, nil)
		_, _, err = s.store.Replace(s.Context(), entity, driver.Stamp{}, bad)
		s.mustFail(err, interlock.Bug, nil)
	}
	for _, old := range []driver.Stamp{{Version: 6}, {Version: 7}, {Version: 6, Tie: "a"}} {
		_, _, err := s.store.Replace(s.Context(), entity, old, state(6, ""))
		s.mustFail(err, interlock.Bug, nil)
	}
	s.mustHave(entity, state(5, ""))
}

// testVersionsContextAlreadyEnded checks that the cause is returned and nothing was done.
func testVersionsContextAlreadyEnded(s *versionsScene) {
	ctx, cause := endedContext(s.T)
	_, _, err := s.store.Apply(ctx, entity, state(1, ""))
	s.mustFail(err, interlock.Definite, cause)
	_, _, err = s.store.Replace(ctx, entity, driver.Stamp{}, state(1, ""))
	s.mustFail(err, interlock.Definite, cause)
	_, err = s.store.Get(ctx, entity)
	s.mustFail(err, interlock.Definite, cause)
	s.mustHave(entity, driver.Versioned{})
}

// write is Apply or Replace.
type write func(ctx context.Context) (driver.VersionOutcome, driver.Versioned, error)

// testLostReplyToApply checks that the outcome is unknown and a repetition converges.
func testLostReplyToApply(s *versionsScene) {
	s.loseReplyTo(state(2, "a"), func(ctx context.Context) (driver.VersionOutcome, driver.Versioned, error) {
		return s.store.Apply(ctx, entity, state(2, "a"))
	})
	s.mustApply(state(1, "z"), driver.VersionStale, state(2, "a"))
}

// testLostReplyToReplace checks that the repetition finds its own state.
func testLostReplyToReplace(s *versionsScene) {
	s.loseReplyTo(state(2, "a"), func(ctx context.Context) (driver.VersionOutcome, driver.Versioned, error) {
		return s.store.Replace(ctx, entity, driver.Stamp{Version: 1}, state(2, "a"))
	})
}

func (s *versionsScene) loseReplyTo(want driver.Versioned, do write) {
	s.Helper()
	s.mustApply(state(1, ""), driver.VersionApplied, state(1, "")) // the connection is open
	s.mustReplace(driver.Stamp{}, state(2, ""), driver.VersionStale, state(1, ""))
	s.loseReply(func(ctx context.Context) error {
		_, _, err := do(ctx)
		return err
	})
	beside := s.beside()
	s.persistUntil("the state that was written without a reply", func(ctx context.Context) (bool, error) {
		v, err := beside.Get(ctx, entity)
		return sameState(v, want), err
	})
	s.persist("repeat it", func(ctx context.Context) error {
		outcome, stored, err := do(ctx)
		if err == nil && (outcome != driver.VersionDuplicate || !sameState(stored, want)) {
			s.Fatalf("the repetition: %v, %+v", outcome, stored)
		}
		return err
	})
}

// testVersionsOverARestart checks that a durable server keeps all stamps, including those
// of tombstones, when its process is killed.
func testVersionsOverARestart(s *versionsScene) {
	s.mustApply(tombstone(5), driver.VersionApplied, tombstone(5))
	s.restartAround(func(ctx context.Context) error {
		_, _, err := s.store.Apply(ctx, entity, state(6, ""))
		return err
	})
	s.persist("apply after the restart", func(ctx context.Context) error {
		outcome, _, err := s.store.Apply(ctx, entity, state(4, ""))
		if err == nil && outcome != driver.VersionStale {
			s.Fatalf("a restart forgot a tombstone: %v", outcome)
		}
		return err
	})
}
