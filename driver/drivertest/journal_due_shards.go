package drivertest

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

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
