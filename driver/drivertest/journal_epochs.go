package drivertest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testPositionsGuard checks that an append is done only at the position that it expects.
func testPositionsGuard(s *journalScene) {
	a := s.begin("t", s.at(0))
	a.After = 3
	s.mustBeElsewhere(s.append(s.store, a), "t", 3, 0)
	a.After = 0
	s.mustAppend(a)
	s.mustBeElsewhere(s.append(s.open(), a), "t", 0, 1)
	a.After, a.Records, a.Due = 1, records("sent", "done"), s.at(time.Second)
	s.mustAppend(a)
	for _, after := range []int64{0, 1, 2, 4} {
		a.After, a.Due = after, s.at(time.Hour)
		found := s.mustBeElsewhere(s.append(s.store, a), "t", after, 3).Found
		if string(found.Sum) != "sum of done" || found.Transaction != "t" || !found.Due.Equal(s.at(time.Second)) {
			s.Fatalf("the refusal shows %+v", found)
		}
	}
	s.mustStand("t", s.at(time.Second), "begin", "sent", "done")
	a.After, a.Shard = 3, 1
	s.mustFail(s.append(s.store, a), interlock.Bug, nil)
	s.mustStand("t", s.at(time.Second), "begin", "sent", "done")
}

// testEndedIsClosed checks that nothing can be appended after the end.
func testEndedIsClosed(s *journalScene) {
	s.mustAppend(s.begin("t", s.at(0)))
	ends := []driver.Append{{Transaction: "t", After: 1, Records: records("end")}}
	testbed.OK(s, s.store.Append(s.Context(), ends)[0])
	end, head := ends[0], s.mustStand("t", time.Time{}, "begin", "end")
	if time.Since(head.Ended).Abs() > time.Hour || !end.Ended.Equal(head.Ended) {
		s.Errorf("it ended at %v; the append had %v", head.Ended, end.Ended)
	}
	end.After, end.Due = 2, s.at(0)
	s.mustBeElsewhere(s.append(s.store, end), "t", 2, 2)
	s.mustStand("t", time.Time{}, "begin", "end")
	s.mustBeDue(0)
}

// testEpochsGuard checks that a shard has one epoch, which never falls, and that a former owner, such
// as one that was paused, changes nothing.
func testEpochsGuard(s *journalScene) {
	s.mustAppend(s.begin("t", s.at(0)))
	a := driver.Append{Transaction: "t", Epoch: s.token(5, 1), After: 1, Records: records("sent"), Due: s.at(0)}
	s.mustFail(s.append(s.store, a), interlock.Bug, nil) // the shard has no epoch yet
	ctx := s.Context()
	for _, epoch := range []interlock.Token{s.token(5, 0), s.token(5, 1), s.token(5, 1)} {
		testbed.OK(s, s.open().Enter(ctx, 0, epoch))
	}
	for _, stale := range []interlock.Token{s.token(5, 0), s.token(4, interlock.MaxSub)} {
		s.mustBeStale(s.store.Enter(ctx, 0, stale), driver.ShardName(0), s.token(5, 1), stale)
		b := a
		b.Epoch = stale
		s.mustBeStale(s.append(s.store, b), driver.ShardName(0), s.token(5, 1), stale)
		_, err := s.store.Claim(ctx, 0, stale, s.at(time.Hour), s.at(time.Hour), 10)
		s.mustBeStale(err, driver.ShardName(0), s.token(5, 1), stale)
	}
	high := a
	high.Epoch = s.token(6, 0)
	s.mustFail(s.append(s.store, high), interlock.Bug, nil)
	s.mustStand("t", s.at(0), "begin")
	s.mustBeDue(0, "t")
	s.mustAppend(a)
	s.enter(1, 9) // of another shard
	a.After, a.Epoch = 2, 0
	s.mustAppend(a)
	if _, all := s.read("t"); all[1].Epoch != s.token(5, 1) || all[2].Epoch != 0 {
		s.Errorf("epochs %d and %d", all[1].Epoch, all[2].Epoch)
	}
	s.mustFail(s.store.Enter(ctx, 0, 0), interlock.Bug, nil)
	s.mustFail(s.store.Enter(ctx, -1, s.token(1, 0)), interlock.Bug, nil)
}

// testEnterRefusesImplausibleEpoch: such an epoch would reject every later owner.
func testEnterRefusesImplausibleEpoch(s *journalScene) {
	ahead := 2 * interlock.MaxAhead.Microseconds()
	s.mustFail(s.store.Enter(s.Context(), 0, s.token(ahead, 0)), interlock.Definite, interlock.ErrImplausibleToken)
	s.enter(0, 1)
}

// testEnterEndsWhatIsUnderWay checks that appends of an old owner take effect before a
// new epoch enters, or never.
func testEnterEndsWhatIsUnderWay(s *journalScene) {
	old := s.enter(0, 1)
	const writers = 8
	for i := range writers {
		s.mustAppend(driver.Append{Transaction: fmt.Sprint("t", i), Epoch: old, Records: records("begin"), Due: s.at(0)})
	}
	var wg sync.WaitGroup
	begun := make(chan struct{}, writers)
	for i := range writers {
		j := s.open()
		wg.Go(func() {
			for after := int64(1); ; {
				a := driver.Append{Transaction: fmt.Sprint("t", i), Epoch: old, After: after, Records: records("more"), Due: s.at(0)}
				switch err := j.Append(s.Context(), []driver.Append{a})[0]; {
				case err == nil:
					if after++; after == 4 {
						begun <- struct{}{}
					}
				case errors.Is(err, interlock.ErrHeld): // Enter is in progress
				case !errors.Is(err, interlock.ErrStaleToken):
					s.Errorf("writer %d: %v", i, err)
					return
				default:
					return
				}
			}
		})
	}
	for range writers {
		testbed.Receive(s, begun, "three appends of a writer")
	}
	s.enter(0, 2)
	entered := make([]int64, writers)
	for i := range writers {
		head, _ := s.read(fmt.Sprint("t", i))
		entered[i] = head.Position
	}
	wg.Wait()
	for i := range writers {
		if head, _ := s.read(fmt.Sprint("t", i)); head.Position != entered[i] {
			s.Errorf("t%d grew from %d to %d after a new owner had entered", i, entered[i], head.Position)
		}
	}
}

// testAppendersCompete checks that one of several appends at one position succeeds.
func testAppendersCompete(s *journalScene) {
	const appenders, rounds = 6, 10
	s.mustAppend(s.begin("t", s.at(0)))
	for round := range int64(rounds) {
		var done atomic.Int64
		s.atOnce(appenders, func(i int, j driver.Journal) error {
			err := s.append(j, driver.Append{Transaction: "t", After: round + 1, Records: records(fmt.Sprint("by ", i)), Due: s.at(0)})
			var elsewhere *driver.PositionError
			switch {
			case err == nil:
				done.Add(1)
			case interlock.Kind(err) != interlock.Retryable && !errors.As(err, &elsewhere):
				return err
			}
			return nil
		})
		if head, _ := s.read("t"); done.Load() != 1 || head.Position != round+2 {
			s.Fatalf("round %d: %d did it, it is at %d", round, done.Load(), head.Position)
		}
	}
}

// testAppendsAreIndependent checks that a refused append affects no other of its group.
func testAppendsAreIndependent(s *journalScene) {
	old := s.enter(0, 1)
	epoch := s.enter(0, 2)
	other := s.enter(7, 9)
	s.mustAppend(s.begin("there", s.at(0)))
	s.mustAppend(driver.Append{Transaction: "elsewhere", Shard: 7, Epoch: other, Records: records("begin"), Due: s.at(0)})
	large := s.begin("large", s.at(0))
	large.Records[0].Data = make([]byte, driver.MaxRecord+1)
	badType := s.begin("bad type", s.at(0))
	badType.Type = "\xff"
	errs := s.store.Append(s.Context(), []driver.Append{
		{Transaction: "new", Epoch: epoch, Records: records("begin"), Due: s.at(time.Second)},
		s.begin("there", s.at(time.Hour)),
		{Transaction: "stale", Epoch: old, Records: records("begin"), Due: s.at(0)},
		{Transaction: "elsewhere", Shard: 7, Epoch: other, After: 1, Records: records("end")},
		large,
		{Transaction: "new", Epoch: epoch, After: 1, Records: records("sent"), Due: s.at(0)},
		s.begin("last", s.at(2*time.Second)),
		s.begin("bad\xff", s.at(0)),
		s.begin("bad\x00", s.at(0)),
		badType,
	})
	if len(errs) != 10 || errs[0] != nil || errs[3] != nil || errs[6] != nil {
		s.Fatalf("results %v", errs)
	}
	s.mustBeElsewhere(errs[1], "there", 0, 1)
	s.mustBeStale(errs[2], driver.ShardName(0), epoch, old)
	s.mustFail(errs[4], interlock.Definite, nil)
	s.mustFail(errs[5], interlock.Bug, nil)
	for _, err := range errs[7:] {
		s.mustFail(err, interlock.Bug, interlock.ErrName)
	}
	s.mustStand("new", s.at(time.Second), "begin")
	s.mustStand("there", s.at(0), "begin")
	s.mustStand("elsewhere", time.Time{}, "begin", "end")
	s.mustStand("last", s.at(2*time.Second), "begin")
	s.mustBeDue(0, "there", "new", "last")
	s.mustBeDue(7)
}

// testManyAppendsAtOnce makes a group as large as its number of callers.
func testManyAppendsAtOnce(s *journalScene) {
	const many = 300
	epoch := s.enter(0, 1)
	var begins, ends []driver.Append
	for i := range many {
		name := fmt.Sprintf("t%03d", i)
		begins = append(begins, driver.Append{Transaction: name, Epoch: epoch, Records: records("begin", "sent"), Due: s.at(0)})
		ends = append(ends, driver.Append{Transaction: name, Epoch: epoch, After: 2, Records: records("done", "end")})
	}
	for _, group := range [][]driver.Append{begins, ends} {
		testbed.OK(s, errors.Join(s.store.Append(s.Context(), group)...))
		if group[0].After == 0 && len(s.due(0)) != many {
			s.Errorf("%d are due, want %d", len(s.due(0)), many)
		}
	}
	s.mustBeDue(0)
	s.mustStand("t299", time.Time{}, "begin", "sent", "done", "end")
}
