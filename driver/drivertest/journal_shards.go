package drivertest

import (
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testShardCount checks that the first count stays until a caller that knows it changes it.
func testShardCount(s *journalScene) {
	set := func(from, to, want int) {
		s.Helper()
		if got, err := s.open().Shards(s.Context(), from, to); got != want || err != nil {
			s.Fatalf("from %d to %d: %d, %v; want %d", from, to, got, err, want)
		}
	}
	set(0, 0, 0)
	set(5, 6, 0)
	s.atOnce(4, func(i int, j driver.Journal) error {
		_, err := j.Shards(s.Context(), 0, i+1)
		return err
	})
	first, err := s.store.Shards(s.Context(), 0, 0)
	if err != nil || first < 1 || first > 4 {
		s.Fatalf("stored %d, %v", first, err)
	}
	set(0, 9, first)
	set(first, -7, -7)
	set(first, 9, -7)
	set(-7, 7, 7)
	set(0, 0, 7)
}

// testBeginUnderAnotherShardCount checks that an append that begins a transaction under
// another shard count than the stored one is refused, and other appends are not.
func testBeginUnderAnotherShardCount(s *journalScene) {
	begin := func(transaction string, shards int) error {
		a := s.begin(transaction, s.at(time.Second))
		a.Shards = shards
		return s.append(s.store, a)
	}
	refused := func(err error, stored, opened int) {
		s.Helper()
		if other, found := errors.AsType[*driver.ShardsError](err); !found || other.Stored != stored || other.Opened != opened || interlock.Kind(err) != interlock.Definite {
			s.Errorf("%v; want a refusal of %d where %d is stored", err, opened, stored)
		}
	}
	refused(begin("early", 8), 0, 8)
	for _, number := range []int{8, -4, 4} {
		stored, err := s.store.Shards(s.Context(), 0, 0)
		if err == nil {
			stored, err = s.store.Shards(s.Context(), stored, number)
		}
		if err != nil || stored != number {
			s.Fatalf("stored %d, %v", stored, err)
		}
		if number == 8 {
			s.mustAppend(s.begin("unsaid", s.at(time.Second)))
			testbed.OK(s, begin("there", 8))
			continue
		}
		refused(begin("late", 8), number, 8)
		s.mustBeElsewhere(begin("there", 8), "there", 0, 1)
	}
	more := s.appendAfter("there", 1, s.at(time.Minute))
	more.Shards = 8
	s.mustAppend(more)
	if err := begin("late", 4); err != nil {
		s.Error(err)
	}
	s.mustStand("late", s.at(time.Second), "begin")
}

// testReassign checks that an unfinished transaction moves with its due time, and that one
// that has advanced or ended does not move.
func testReassign(s *journalScene) {
	s.mustAppend(s.begin("t", s.at(time.Second)))
	s.mustAppend(s.begin("ended", s.at(0)))
	old, _ := s.read("t")
	s.mustAppend(s.appendAfter("t", 1, s.at(time.Minute)))
	reassign := func(name string, position int64, shard int) {
		s.Helper()
		head, _ := s.read(name)
		if position > 0 {
			head = old
		}
		testbed.OK(s, s.store.Reassign(s.Context(), head, shard))
	}
	reassign("t", old.Position, 5)
	if head, _ := s.read("t"); head.Shard != 0 {
		s.Fatalf("an old head gave %+v", head)
	}
	reassign("t", 0, 5)
	s.mustBeDue(5, "t")
	head := s.mustStand("t", s.at(time.Minute), "begin", "more")
	if head.Shard != 5 || head.Type != "order" || head.Began != old.Began {
		s.Fatalf("reassigned: %+v, was %+v", head, old)
	}
	epoch := s.enter(5, 1)
	if heads, err := s.store.Claim(s.Context(), 5, epoch, s.at(time.Hour), s.at(2*time.Hour), 9); err != nil || len(heads) != 1 {
		s.Fatalf("claimed %+v, %v", heads, err)
	}
	end := s.appendAfter("ended", 1, time.Time{})
	s.mustAppend(end)
	reassign("ended", 0, 5)
	if head, _ := s.read("ended"); head.Shard != 0 {
		s.Errorf("an ended transaction is in shard %d", head.Shard)
	}
	s.mustBeDue(0)
	if n, err := s.store.Unscheduled(s.Context()); n != 0 || err != nil {
		s.Errorf("%d unscheduled, %v", n, err)
	}
}
