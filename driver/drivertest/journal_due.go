package drivertest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testDueInOrder checks that each shard lists its unfinished transactions by due time,
// including times far in the past and future.
func testDueInOrder(s *journalScene) {
	s.mustAppend(s.begin("later", s.at(72*time.Hour)))
	s.mustAppend(s.begin("past", s.at(-365*24*time.Hour)))
	s.mustAppend(s.begin("b", s.at(time.Millisecond)))
	s.mustAppend(s.begin("a", s.at(time.Millisecond).Add(time.Microsecond))) // due times have milliseconds
	s.mustAppend(s.begin("now", s.at(0)))
	other := s.begin("other", s.at(0))
	other.Shard = 12
	s.mustAppend(other)
	s.mustBeDue(0, "past", "now", "a", "b", "later")
	s.mustBeDue(12, "other")
	page, err := s.store.Due(s.Context(), 0, driver.Head{}, 2)
	if err != nil || !slices.Equal(idsOf(page), []string{"past", "now"}) || page[1].Type != "order" || page[1].Position != 1 {
		s.Fatalf("first page %+v, %v", page, err)
	}
	page, err = s.store.Due(s.Context(), 0, page[1], 2)
	if err != nil || !slices.Equal(idsOf(page), []string{"a", "b"}) {
		s.Fatalf("second page %+v, %v", page, err)
	}
	s.mustAppend(driver.Append{Transaction: "past", After: 1, Records: records("sent"), Due: s.at(time.Hour)})
	s.mustAppend(driver.Append{Transaction: "a", After: 1, Records: records("end")})
	s.mustBeDue(0, "now", "b", "past", "later")
}

// testClaimMovesDue checks that a claim takes the earliest and returns their new due times.
func testClaimMovesDue(s *journalScene) {
	epoch := s.enter(0, 1)
	for i, name := range []string{"a", "b", "c", "d"} {
		s.mustAppend(s.begin(name, s.at(time.Duration(i)*time.Second)))
	}
	claim := func(by, until time.Duration, limit int) []driver.Head {
		s.Helper()
		heads, err := s.store.Claim(s.Context(), 0, epoch, s.at(by), s.at(until), limit)
		testbed.OK(s, err)
		return heads
	}
	first := claim(2*time.Second, time.Minute, 2)
	if !slices.Equal(idsOf(first), []string{"a", "b"}) || !first[0].Claimed || !first[0].Due.Equal(s.at(time.Minute)) || first[0].Position != 1 {
		s.Fatalf("first claim %+v", first)
	}
	if got := idsOf(claim(2*time.Second, time.Minute, 2)); !slices.Equal(got, []string{"c"}) {
		s.Fatalf("second claim %q", got)
	}
	if got := claim(2*time.Second, time.Minute, 2); len(got) > 0 {
		s.Fatalf("third claim %+v", got)
	}
	s.mustBeDue(0, "d", "a", "b", "c")
	if head, _ := s.read("a"); !head.Claimed || !head.Due.Equal(s.at(time.Minute)) || head.Position != 1 {
		s.Errorf("claimed: %+v", head)
	}
	s.mustAppend(driver.Append{Transaction: "a", Epoch: epoch, After: 1, Records: records("sent"), Due: s.at(time.Hour)})
	if head, _ := s.read("a"); head.Claimed {
		s.Error("an append leaves it claimed")
	}
	_, err := s.store.Claim(s.Context(), 0, epoch, s.at(0), time.Time{}, 1)
	s.mustFail(err, interlock.Bug, nil)
}

// testClaimsCompete checks that concurrent claims get different transactions, and all.
func testClaimsCompete(s *journalScene) {
	epoch := s.enter(0, 1)
	const all = 40
	for i := range all {
		s.mustAppend(s.begin(fmt.Sprintf("t%02d", i), s.at(0)))
	}
	var mu sync.Mutex
	got := map[string]int{}
	s.atOnce(4, func(_ int, j driver.Journal) error {
		for {
			heads, err := j.Claim(s.Context(), 0, epoch, s.at(0), s.at(time.Hour), 3)
			if err != nil && interlock.Kind(err) != interlock.Retryable || err == nil && len(heads) == 0 {
				return err
			}
			mu.Lock()
			for _, h := range heads {
				got[h.Transaction]++
			}
			mu.Unlock()
		}
	})
	for name, n := range got {
		if n != 1 {
			s.Errorf("%s was claimed %d times", name, n)
		}
	}
	if len(got) != all {
		s.Errorf("%d were claimed, want %d", len(got), all)
	}
}

// testForgetDeletesEnded checks that transactions that ended long enough ago are deleted
// completely, and unfinished ones never.
func testForgetDeletesEnded(s *journalScene) {
	for _, name := range []string{"open", "ended 1", "ended 2", "ended 3"} {
		s.mustAppend(s.begin(name, s.at(-time.Hour)))
		testbed.OK(s, s.store.PutPayload(s.Context(), name, []byte("sum"), []byte("payload")))
		if name != "open" {
			s.mustAppend(driver.Append{Transaction: name, After: 1, Records: records("end")})
		}
	}
	testbed.OK(s, s.store.PutPayload(s.Context(), "never begun", []byte("sum"), []byte("payload")))
	forget := func(before time.Time, limit, want int) {
		s.Helper()
		if n, err := s.store.Forget(s.Context(), before, limit); n != want || err != nil {
			s.Fatalf("%d forgotten, %v; want %d", n, err, want)
		}
	}
	forget(s.at(-24*time.Hour), 10, 0)
	forget(s.at(24*time.Hour), 2, 2)
	forget(s.at(24*time.Hour), 10, 1)
	heads, err := s.store.Heads(s.Context(), "", 10)
	if err != nil || !slices.Equal(idsOf(heads), []string{"open"}) {
		s.Fatalf("left %+v, %v", heads, err)
	}
	for name, kept := range map[string]bool{"open": true, "ended 1": false, "never begun": false} {
		if p, err := s.store.Payload(s.Context(), name, []byte("sum")); err != nil || (p != nil) != kept {
			s.Errorf("payload of %q: %q, %v", name, p, err)
		}
	}
	s.mustStand("open", s.at(-time.Hour), "begin")
	s.mustAppend(s.begin("ended 1", s.at(0))) // a forgotten id can be used again
	s.mustStand("ended 1", s.at(0), "begin")
}

// testPutPayloadRefreshes checks that a payload that is stored again, before its transaction
// begins, has the age of the last PutPayload.
func testPutPayloadRefreshes(s *journalScene) {
	keep := func() {
		s.Helper()
		testbed.OK(s, s.store.PutPayload(s.Context(), "t", []byte("sum"), []byte("payload")))
	}
	storeClock := func(name string) time.Time { // by the store's clock
		s.Helper()
		s.mustAppend(s.begin(name, s.at(0)))
		_, all := s.read(name)
		return all[0].Written
	}
	keep()
	between := storeClock("a")
	for n := 0; !between.Before(storeClock(fmt.Sprint("b", n))); n++ { // clocks have milliseconds
		time.Sleep(time.Millisecond)
	}
	keep()
	_, err := s.store.Forget(s.Context(), between.Add(time.Microsecond), 10)
	testbed.OK(s, err)
	if p, err := s.store.Payload(s.Context(), "t", []byte("sum")); err != nil || string(p) != "payload" {
		s.Fatalf("the payload that was kept again is %q, %v", p, err)
	}
	_, err = s.store.Forget(s.Context(), s.at(24*time.Hour), 10)
	testbed.OK(s, err)
	if p, err := s.store.Payload(s.Context(), "t", []byte("sum")); err != nil || p != nil {
		s.Fatalf("the payload of nothing is still %q, %v", p, err)
	}
}

// testUnfinishedIsScheduled runs operations concurrently; all unfinished remain due.
func testUnfinishedIsScheduled(s *journalScene) {
	epoch := s.enter(0, 1)
	s.atOnce(4, func(w int, j driver.Journal) error {
		for i := range 12 {
			name := fmt.Sprintf("t%d.%d", w, i)
			a := driver.Append{Transaction: name, Epoch: epoch, Records: records("begin"), Due: s.at(time.Duration(i) * time.Second)}
			err := s.append(j, a)
			if err == nil && i%3 == 0 {
				_, err = j.Claim(s.Context(), 0, epoch, s.at(time.Hour), s.at(2*time.Hour), 2)
			}
			if a.After, a.Due = 1, (time.Time{}); err == nil && i%2 == 0 {
				err = s.append(j, a)
			}
			if err != nil && interlock.Kind(err) != interlock.Retryable {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
	unfinished := 0
	heads, err := s.store.Heads(s.Context(), "", 1000)
	for _, h := range heads {
		if h.Ended.IsZero() {
			unfinished++
		}
	}
	n, err2 := s.store.Unscheduled(s.Context())
	if err != nil || err2 != nil || n != 0 {
		s.Errorf("%d unscheduled, %v, %v", n, err, err2)
	}
	if due := s.due(0); len(due) != unfinished {
		s.Errorf("%d are due, %d unfinished", len(due), unfinished)
	}
}
