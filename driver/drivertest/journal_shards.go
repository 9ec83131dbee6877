package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
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

// dueShards returns those of the shards that have a transaction due by a time.
func (s *journalScene) dueShards(by time.Time, shards ...int) []int {
	s.Helper()
	due, err := s.store.DueShards(s.Context(), shards, by)
	if err != nil {
		s.Fatalf("due: %v", err)
	}
	return due
}

func (s *journalScene) mustHaveDue(by time.Time, shards []int, want ...int) {
	s.Helper()
	if got := s.dueShards(by, shards...); !slices.Equal(got, want) {
		s.Fatalf("of %v those are due: %v, want %v", shards, got, want)
	}
}

// testDueShards checks that a shard is listed while it has a due transaction.
func testDueShards(s *journalScene) {
	in := func(shard int, name string, due time.Duration) driver.Append {
		a := s.begin(name, s.at(due))
		a.Shard = shard
		s.mustAppend(a)
		return driver.Append{Transaction: name, Shard: shard, After: 1, Records: records("more")}
	}
	in(0, "now", 0)
	in(0, "and later", time.Hour)
	in(1, "later", time.Minute)
	ended := in(2, "ended", 0)
	in(3, "claimed", 0)
	in(5, "long ago", -365*24*time.Hour)
	putOff := in(6, "put off", 0)
	in(9, "not asked for", 0)
	s.mustAppend(ended)
	putOff.Due = s.at(time.Minute)
	s.mustAppend(putOff)
	epochs := map[int]interlock.Token{}
	claim := func(shard, want int) {
		s.Helper()
		if epochs[shard] == 0 {
			epochs[shard] = s.enter(shard, 1)
		}
		heads, err := s.store.Claim(s.Context(), shard, epochs[shard], s.at(0), s.at(time.Hour), 10)
		if err != nil || len(heads) != want {
			s.Fatalf("claimed in shard %d: %+v, %v", shard, heads, err)
		}
	}
	claim(3, 1)
	list := []int{5, 3, 0, 2, 1, 6, 70, 5, 1 << 40, 0, 4, -1}
	given := slices.Clone(list)
	for _, shard := range []int{2, 6} { // may be listed until a claim finds nothing
		if due := s.dueShards(s.at(0), list...); !slices.Equal(slices.DeleteFunc(due, func(n int) bool { return n == 2 || n == 6 }), []int{0, 5}) {
			s.Fatalf("due, beside 2 and 6: %v", due)
		}
		claim(shard, 0)
	}
	s.mustHaveDue(s.at(0), list, 0, 5)
	if !slices.Equal(list, given) {
		s.Errorf("the list that was given is now %v", list)
	}
	s.mustHaveDue(s.at(0).Add(-time.Microsecond), list, 5)
	s.mustHaveDue(s.at(time.Minute), list, 0, 1, 5, 6)
	s.mustHaveDue(s.at(time.Hour), list, 0, 1, 3, 5, 6)
	s.mustHaveDue(s.at(time.Hour), []int{2, 4, 70})
	s.mustHaveDue(s.at(0), []int{9, 9}, 9)
	s.mustHaveDue(s.at(time.Hour), nil)
	claim(0, 1)
	s.mustHaveDue(s.at(0), list, 5)
}

// testDueShardsOfMany passes as many shards as a journal can have.
func testDueShardsOfMany(s *journalScene) {
	var all []int
	for i := range 1000 {
		all = append(all, 999-i)
	}
	due := []int{0, 1, 99, 100, 127, 128, 255, 256, 700, 999}
	for _, shard := range due {
		a := s.begin(fmt.Sprint("t", shard), s.at(0))
		a.Shard = shard
		s.mustAppend(a)
	}
	s.mustHaveDue(s.at(0), all, due...)
	s.mustHaveDue(s.at(-time.Millisecond), all)
}

// testDueShardsUnderChanges checks that a transaction that is always due is always seen,
// while it is appended to and claimed.
func testDueShardsUnderChanges(s *journalScene) {
	epoch := s.enter(0, 1)
	s.mustAppend(s.begin("t", s.at(0)))
	var ended atomic.Bool
	var looks atomic.Int64
	var wg sync.WaitGroup
	reader := s.open()
	wg.Go(func() {
		for !ended.Load() {
			due, err := reader.DueShards(s.Context(), []int{0, 1}, s.at(0))
			if err != nil || !slices.Equal(due, []int{0}) {
				s.Errorf("due: %v, %v", due, err)
				return
			}
			looks.Add(1)
		}
	})
	defer wg.Wait()
	defer ended.Store(true)
	for i := int64(1); i <= 60 || looks.Load() < 60 && !s.Failed(); i++ {
		// Alternately earlier and later, and always due.
		s.mustAppend(driver.Append{Transaction: "t", Epoch: epoch, After: i, Records: records("more"), Due: s.at(-time.Duration(i*7%60) * time.Second)})
		if _, err := s.store.Claim(s.Context(), 0, epoch, s.at(0), s.at(-time.Duration(i*11%60)*time.Second), 1); err != nil {
			s.Fatalf("claim: %v", err)
		}
	}
}
