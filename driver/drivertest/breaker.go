package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// RunBreaker runs the suite of driver.Breaker with the harness of the driver's locks.
// It needs Inspection.
func RunBreaker(t *testing.T, h Harness) {
	h.runAll(t, []suiteTest[*scene]{
		{"BreakTakesTheLock", 0, testBreakTakesTheLock},
		{"BreakGrantsTheNextWaiter", 0, testBreakGrantsTheNextWaiter},
		{"BreakOfACrashedHolder", 0, testBreakOfACrashedHolder},
		{"BreakOnlyTheHolder", 0, testBreakOnlyTheHolder},
		{"BreakCompetition", 0, testBreakCompetition},
		{"BreaksNewestFirst", 0, testBreaksNewestFirst},
		{"BreaksAreData", 0, testBreaksAreData},
		{"BreakNamesAreData", 0, testBreakNamesAreData},
		{"BreakRefuses", 0, testBreakRefuses},
		{"BreakContextAlreadyEnded", 0, testBreakContextAlreadyEnded},
		{"BreakAfterClose", 0, testBreakAfterClose},
		{"LostReplyToBreak", Servers | LostReplies | onPaths, testLostReplyToBreak},
		{"BreaksSurviveARestart", Servers, testBreaksSurviveARestart},
	})
}

func (s *scene) breaker(d driver.Fenced) driver.Breaker {
	s.Helper()
	b, ok := d.(driver.Breaker)
	if !ok {
		s.Fatal("the driver is no Breaker")
	}
	return b
}

// order returns an operator's request to break the contender's lock.
func (c *contender) order() driver.Break {
	return driver.Break{Name: c.req.Name, Owner: c.req.Owner, Reason: "its machine burnt down", By: "an operator"}
}

// mustBreak requires that the lock is broken and the record is correct.
func (s *scene) mustBreak(d driver.Fenced, c *contender, b driver.Break) driver.BreakRecord {
	s.Helper()
	record, ok, err := s.breaker(d).Break(s.Context(), b)
	if err != nil || !ok {
		s.Fatalf("break %q of %s: %v, %v", b.Name, b.Owner, ok, err)
	}
	s.mustRecordBreak(record, c, b)
	return record
}

func (s *scene) mustRecordBreak(record driver.BreakRecord, c *contender, b driver.Break) {
	s.Helper()
	if record.Break != b || record.Token != c.grant.Token || time.Since(record.At).Abs() > 5*time.Minute {
		s.Fatalf("the record is %+v, want %+v with token %d", record, b, c.grant.Token)
	}
}

// mustNotBreak requires that there was nothing to break.
func (s *scene) mustNotBreak(d driver.Fenced, b driver.Break) {
	s.Helper()
	if record, ok, err := s.breaker(d).Break(s.Context(), b); err != nil || ok {
		s.Fatalf("break %q of %q, who does not hold it: %+v, %v, %v", b.Name, b.Owner, record, ok, err)
	}
}

func (s *scene) breaks(d driver.Fenced, name string, limit int) []driver.BreakRecord {
	s.Helper()
	all, err := s.breaker(d).Breaks(s.Context(), name, limit)
	if err != nil {
		s.Fatalf("breaks of %q: %v", name, err)
	}
	return all
}

// mustHaveBroken requires these records for name, newest first.
func (s *scene) mustHaveBroken(d driver.Fenced, name string, limit int, want ...driver.BreakRecord) {
	s.Helper()
	got := s.breaks(d, name, limit)
	same := len(got) == len(want)
	for i := 0; same && i < len(want); i++ {
		same = got[i].Break == want[i].Break && got[i].Token == want[i].Token && got[i].At.Equal(want[i].At)
	}
	if !same {
		s.Fatalf("recorded for %q, at most %d: %+v, want %+v", name, limit, got, want)
	}
}

// mustLose requires that the holder receives one loss in time and that its lease has
// ended.
func (s *scene) mustLose(c *contender) {
	s.Helper()
	bound := c.d.Guarantees().Blind
	began := time.Now()
	cause := s.wait(c.req.Lost, bound+patience, "word of the loss")
	if took := time.Since(began); took > bound+time.Second {
		s.Fatalf("the loss was reported after %v, claimed are %v", took, bound)
	}
	if !errors.Is(cause, interlock.ErrLost) && !errors.Is(cause, interlock.ErrSessionEnded) {
		s.Fatalf("cause %v", cause)
	}
}

// testBreakTakesTheLock checks that the lock is free, the record is correct, and the
// holder receives the loss.
func testBreakTakesTheLock(s *scene) {
	d := s.open()
	holder := s.contender(s.open(), lockName).acquire()
	record := s.mustBreak(d, holder, holder.order())
	next := s.contender(s.open(), lockName).acquire()
	s.mustIncrease([]interlock.Token{holder.grant.Token, next.grant.Token})
	s.mustLose(holder)
	s.mustHearNothing(holder, "a second report")
	holder.release()
	s.mustHold(next)
	s.mustNotBreak(d, holder.order())
	s.mustHold(next)
	s.mustHaveBroken(d, lockName, 10, record)
	next.release()
	s.mustBeEmpty(lockName)
}

// testBreakGrantsTheNextWaiter checks that the next waiter gets the lock, even in the
// breaker's process, and that another lock of the former holder stays.
func testBreakGrantsTheNextWaiter(s *scene) {
	d, holding := s.open(), s.open()
	holder := s.contender(holding, lockName).acquire()
	var other *contender
	if s.Without&LoneBreaks == 0 {
		other = s.contender(holding, "other").acquire()
	}
	waiter := s.contender(d, lockName)
	done := waiter.start(s.Context())
	s.mustBreak(d, holder, holder.order())
	testbed.OK(s, s.wait(done, patience, "the waiter behind a broken holder"))
	s.mustIncrease([]interlock.Token{holder.grant.Token, waiter.grant.Token})
	s.mustLose(holder)
	if other != nil {
		s.mustHold(other)
		if !other.valid() || len(other.req.Lost) > 0 {
			s.Fatal("another lock of the former holder is lost")
		}
		other.release()
	}
	waiter.release()
	s.mustBeEmpty(lockName)
}

// testBreakOfACrashedHolder checks that the next contender need not wait until the
// crashed holder's lease expires.
func testBreakOfACrashedHolder(s *scene) {
	dying, d := s.open(), s.open()
	holder := s.contender(dying, lockName).acquire()
	s.backend.Crash(s.T, dying)
	state, err := s.inspect(d, lockName)
	if err != nil || state.Holder == nil {
		s.Fatalf("right after the crash: %+v, %v", state, err)
	}
	b := holder.order()
	b.Owner = state.Holder.Owner
	record := s.mustBreak(d, holder, b)
	next := s.contender(d, lockName)
	next.req.NoWait = true
	next.acquire()
	s.mustIncrease([]interlock.Token{record.Token, next.grant.Token})
	next.release()
}

// testBreakOnlyTheHolder checks that a break ends no other claim, such as the next one of the same
// process, and that a break without effect is not recorded.
func testBreakOnlyTheHolder(s *scene) {
	d := s.open()
	former := s.contender(s.open(), lockName).acquire()
	former.release()
	s.mustNotBreak(d, former.order()) // not held
	holder := s.contender(former.d, lockName).acquire()
	waiter := s.contender(s.open(), lockName)
	done := waiter.start(s.Context())
	owner := holder.req.Owner
	for _, not := range []string{former.req.Owner, waiter.req.Owner, "nobody", owner + "x", owner[:len(owner)-1], strings.ToUpper(owner), owner + " ", "%", "*"} {
		b := holder.order()
		b.Owner = not
		s.mustNotBreak(d, b)
	}
	b := holder.order()
	b.Name = "accounts/7"
	s.mustNotBreak(d, b)
	s.mustHold(holder)
	s.mustHearNothing(holder, "the holder received a loss")
	s.mustHaveBroken(d, "", 10)
	holder.release()
	testbed.OK(s, s.wait(done, patience, "the waiter"))
	waiter.release()
}

// testBreakCompetition has several operators break a lock at the same time. The records
// are those of the operators that broke it, and the next holder keeps it.
func testBreakCompetition(s *scene) {
	const operators = 6
	processes := []driver.Fenced{s.open(), s.open(), s.open()}
	holder := s.contender(processes[0], lockName).acquire()
	waiter := s.contender(s.open(), lockName)
	done := waiter.start(s.Context())
	var mu sync.Mutex
	var errs []error
	told, unknown := map[string]bool{}, map[string]bool{}
	var running sync.WaitGroup
	for i := range operators {
		b := holder.order()
		b.By = "operator " + string(rune('a'+i))
		running.Go(func() {
			unclear := false // an answer was lost with the session that another operator ended
			ok, err := retried(func() (bool, error) {
				_, ok, err := processes[i%len(processes)].(driver.Breaker).Break(s.Context(), b)
				if interlock.Kind(err) == interlock.Uncertain {
					unclear, err = true, &interlock.Error{Op: "break", Name: lockName, Kind: interlock.Retryable, Err: err}
				}
				return ok, err
			})
			mu.Lock()
			defer mu.Unlock()
			told[b.By], unknown[b.By] = ok, unclear
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	running.Wait()
	if len(errs) > 0 {
		s.Fatal(errors.Join(errs...))
	}
	testbed.OK(s, s.wait(done, patience, "the waiter"))
	s.mustHold(waiter)
	s.mustHearNothing(waiter, "the next holder received a loss")
	records := s.breaks(processes[0], lockName, 100)
	for _, r := range records {
		if !told[r.By] && !unknown[r.By] {
			s.Fatalf("%q is recorded, and was answered that there was nothing to break: %+v", r.By, records)
		}
		delete(told, r.By)
	}
	for by, ok := range told {
		if ok {
			s.Fatalf("%q was answered that it broke the lock, and is not recorded: %+v", by, records)
		}
	}
	if len(records) == 0 {
		s.Fatal("no break took effect")
	}
	waiter.persistRelease()
}

// testBreakContextAlreadyEnded checks that the cause is returned and nothing was done.
func testBreakContextAlreadyEnded(s *scene) {
	d := s.open()
	holder := s.contender(d, lockName).acquire()
	ctx, cause := endedContext(s.T)
	if _, ok, err := s.breaker(d).Break(ctx, holder.order()); ok || !errors.Is(err, cause) || interlock.Kind(err) != interlock.Definite {
		s.Fatalf("a break under an ended context: %v, %v, want the cause", ok, err)
	}
	if _, err := s.breaker(d).Breaks(ctx, lockName, 10); !errors.Is(err, cause) {
		s.Fatalf("breaks under an ended context: %v, want the cause", err)
	}
	s.mustHold(holder)
	s.mustHaveBroken(d, lockName, 10)
	holder.release()
}

func testBreakAfterClose(s *scene) {
	d := s.open()
	holder := s.contender(s.open(), lockName).acquire()
	testbed.OK(s, d.Close(s.Context()))
	if _, ok, err := s.breaker(d).Break(s.Context(), holder.order()); ok || !errors.Is(err, interlock.ErrClosed) {
		s.Fatalf("a break after Close: %v, %v, want ErrClosed", ok, err)
	}
	if _, err := s.breaker(d).Breaks(s.Context(), lockName, 10); !errors.Is(err, interlock.ErrClosed) {
		s.Fatalf("breaks after Close: %v, want ErrClosed", err)
	}
	s.mustHold(holder)
	holder.release()
}

// testLostReplyToBreak checks that a repeated break converges and is recorded. A read without an answer
// is Retryable.
func testLostReplyToBreak(s *scene) {
	d := s.open()
	holder := s.contender(s.open(), lockName).acquire()
	s.mustNotBreak(d, s.contender(d, "other").order()) // the connection is open
	s.faults.(ReplyDropper).DropReplies()
	errTimeUp := errors.New("the operator has no more time")
	ctx, cancel := context.WithTimeoutCause(s.Context(), 500*time.Millisecond, errTimeUp)
	defer cancel()
	_, ok, err := s.breaker(d).Break(ctx, holder.order())
	if ok || !errors.Is(err, errTimeUp) {
		s.Fatalf("a break whose reply is lost: %v, %v, want the cause", ok, err)
	}
	s.mustBeKind(err, interlock.Uncertain, interlock.Retryable) // a driver may read before it writes
	soon, cancelSoon := context.WithTimeout(s.Context(), 500*time.Millisecond)
	defer cancelSoon()
	_, err = d.(driver.Inspector).Lock(soon, lockName)
	s.mustBeKind(err, interlock.Retryable, interlock.Definite) // the time may be over before it is sent
	_, err = s.breaker(d).Breaks(soon, lockName, 1)
	s.mustBeKind(err, interlock.Retryable, interlock.Definite)
	s.faults.Heal()
	testbed.Eventually(s, "a repetition has nothing to break", patience, func() bool {
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Second)
		defer cancel()
		_, ok, err := s.breaker(d).Break(ctx, holder.order())
		return err == nil && !ok
	})
	records := s.breaks(d, lockName, 10)
	if len(records) == 0 {
		s.Fatal("a break took effect and is not recorded")
	}
	for _, r := range records {
		s.mustRecordBreak(r, holder, holder.order())
	}
	next := s.contender(s.open(), lockName).persist()
	s.mustIncrease([]interlock.Token{holder.grant.Token, next.grant.Token})
	next.persistRelease()
}

// testBreaksSurviveARestart checks this for backends that keep records over a restart.
func testBreaksSurviveARestart(s *scene) {
	d := s.open()
	holder := s.contender(s.open(), lockName).acquire()
	record := s.mustBreak(d, holder, holder.order())
	s.faults.Kill()
	s.faults.Restart()
	var fresh driver.Fenced
	testbed.Eventually(s, "a new process comes", patience, func() (ok bool) {
		var err error
		fresh, err = s.backend.Open(s.T)
		return err == nil
	})
	if !fresh.Guarantees().TokensSurvive.Has(interlock.ServerCrash) || !fresh.Guarantees().ExclusionSurvives.Has(interlock.ServerCrash) {
		return // no record is expected
	}
	s.mustHaveBroken(fresh, lockName, 10, record)
}

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
