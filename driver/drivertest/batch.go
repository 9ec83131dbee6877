package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// RunBatch runs the suite of a driver that also implements driver.Batch.
func RunBatch(t *testing.T, h Harness) {
	h.runAll(t, []suiteTest[*scene]{
		{"TakesAll", 0, testBatchTakesAll},
		{"AllOrNothing", 0, testBatchAllOrNothing},
		{"WaiterGoesFirst", FIFO, testBatchWaiterGoesFirst},
		{"ConcurrentBatches", 0, testBatchConcurrentBatches},
		{"TooMany", 0, testBatchTooMany},
		{"LossOfOne", 0, testBatchLossOfOne},
		{"RepeatConverges", 0, testBatchRepeatConverges},
		{"RepeatAcquiresMissing", 0, testBatchRepeatAcquiresMissing},
		{"RepeatReleasesOnConflict", 0, testBatchRepeatReleasesOnConflict},
		{"LostReply", Servers | LostReplies | onPaths, testBatchLostReply},
		{"CrashedHolder", 0, testBatchCrashedHolder},
		{"Contract", 0, testBatchContract},
	})
}

// party is several names that are acquired together. Its methods make the
// tests readable.
type party struct {
	s       *scene
	d       driver.Fenced
	members []*contender
}

func (s *scene) party(d driver.Fenced, names ...string) *party {
	p := &party{s: s, d: d}
	for _, name := range names {
		p.members = append(p.members, s.contender(d, name))
	}
	return p
}

func (p *party) requests() (all []driver.Request) {
	for _, c := range p.members {
		all = append(all, c.req.Request)
	}
	return all
}

func (p *party) try(ctx context.Context) error {
	p.s.Helper()
	b, ok := p.d.(driver.Batch)
	if !ok {
		p.s.Fatal("the driver is no Batch")
	}
	grants, err := b.AcquireAll(ctx, p.requests())
	if err == nil && len(grants) != len(p.members) || err != nil && grants != nil {
		p.s.Fatalf("%d grants for %d names, error %v", len(grants), len(p.members), err)
	}
	for i, g := range grants {
		p.members[i].grant = g
	}
	return err
}

func (p *party) acquire() *party {
	p.s.Helper()
	ctx, cancel := context.WithTimeout(p.s.Context(), patience)
	defer cancel()
	if err := p.try(ctx); err != nil {
		p.s.Fatalf("acquire all: %v", err)
	}
	return p
}

// mustBeRefused requires a refusal that reports that holder holds name.
func (p *party) mustBeRefused(name, holder string) {
	p.s.Helper()
	err := p.try(p.s.Context())
	if held, found := errors.AsType[*interlock.HeldError](err); !found || held.Name != name || held.Owner != holder {
		p.s.Fatalf("got %v, want that %q is held by %s", err, name, holder)
	}
	p.s.mustBeKind(err, interlock.Retryable)
}

// mustHold requires that each name is held, by its owner.
func (p *party) mustHold() {
	p.s.Helper()
	for _, c := range p.members {
		if !c.valid() {
			p.s.Fatalf("the lease of %q has ended", c.req.Name)
		}
		p.s.mustHold(c)
	}
}

func (p *party) release() {
	p.s.Helper()
	for _, c := range p.members {
		c.release()
	}
}

func (s *scene) mustAllBeEmpty(names ...string) {
	s.Helper()
	for _, name := range names {
		s.mustBeEmpty(name)
	}
}

func testBatchTakesAll(s *scene) {
	d, other := s.open(), s.open()
	var before []interlock.Token
	for range 3 {
		p := s.party(d, "a", "b", "c/d").acquire()
		p.mustHold()
		for i, c := range p.members {
			if before != nil {
				s.mustIncrease([]interlock.Token{before[i], c.grant.Token})
			}
			s.mustIncrease([]interlock.Token{c.grant.Token})
		}
		p.release()
		s.mustAllBeEmpty("a", "b", "c/d")
		before = nil
		for _, c := range p.members { // the next single grant is above it, and below the next party
			single := s.contender(other, c.req.Name).acquire()
			s.mustIncrease([]interlock.Token{c.grant.Token, single.grant.Token})
			before = append(before, single.grant.Token)
			single.release()
		}
	}
}

// testBatchAllOrNothing checks that no name is acquired if any of them is held.
func testBatchAllOrNothing(s *scene) {
	names := []string{"a", "b", "c"}
	d, other := s.open(), s.open()
	for _, by := range []driver.Fenced{d, other} {
		for _, name := range names {
			holder := s.contender(by, name).acquire()
			s.party(d, names...).mustBeRefused(name, holder.req.Owner)
			for _, free := range names {
				if free != name {
					s.mustBeEmpty(free)
				}
			}
			holder.release()
			s.mustBeEmpty(name)
		}
	}
	s.party(d, names...).acquire().release()
}

// testBatchWaiterGoesFirst checks that a batch does not get a name that has a waiter,
// and that a refused party delays no other contender.
func testBatchWaiterGoesFirst(s *scene) {
	d, waiting := s.open(), s.open()
	for range 10 {
		holder, waiter := s.contender(d, "b").acquire(), s.contender(waiting, "b")
		done := waiter.start(s.Context())
		s.party(d, "a", "b").mustBeRefused("b", holder.req.Owner)
		holder.release()
		s.party(d, "a", "b").mustBeRefused("b", waiter.req.Owner)
		s.mustBeEmpty("a")
		testbed.OK(s, s.wait(done, patience, "the waiter"))
		waiter.release()
	}
	s.mustAllBeEmpty("a", "b")
}

// testBatchConcurrentBatches acquires the same names in different orders, with single
// acquires in between. No batch waits, so one always continues.
func testBatchConcurrentBatches(s *scene) {
	const rounds = 10
	names := []string{"a", "b", "c"}
	orders := [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "c"}, {"a"}}
	var mu sync.Mutex
	inside, tokens := map[string]int{}, map[string][]interlock.Token{}
	enter := func(p *party, by int) {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range p.members {
			if inside[c.req.Name] += by; inside[c.req.Name] > 1 {
				s.Errorf("%q is held twice", c.req.Name)
			}
			if by > 0 {
				tokens[c.req.Name] = append(tokens[c.req.Name], c.grant.Token)
			}
		}
	}
	var all sync.WaitGroup
	end := time.Now().Add(patience)
	for _, mine := range orders {
		d := s.open()
		all.Go(func() {
			for done := 0; done < rounds; time.Sleep(time.Millisecond) {
				p := s.party(d, mine...)
				err := p.try(s.Context())
				switch {
				case errors.Is(err, interlock.ErrHeld) && time.Now().Before(end):
					continue
				case err != nil:
					s.Errorf("%v: %v", mine, err)
					return
				}
				enter(p, 1)
				time.Sleep(time.Millisecond) // long enough to observe an overlap
				enter(p, -1)
				for _, c := range p.members {
					if err := c.tryRelease(patience); err != nil {
						s.Error(err)
					}
				}
				done++
			}
		})
	}
	all.Wait()
	for _, name := range names {
		if len(tokens[name]) == 0 {
			s.Fatalf("no batch acquired %q", name)
		}
		s.mustIncrease(tokens[name])
	}
	s.mustAllBeEmpty(names...)
}

// testBatchTooMany checks that a large batch gets all names or an error that leaves nothing.
func testBatchTooMany(s *scene) {
	var names []string
	for i := range 300 {
		names = append(names, fmt.Sprintf("n/%03d", i))
	}
	d := s.open()
	p := s.party(d, names...)
	err := p.try(s.Context())
	switch {
	case errors.Is(err, driver.ErrNotInOneStep):
		s.mustBeKind(err, interlock.Definite)
	case err != nil:
		s.Fatal(err)
	default:
		p.mustHold()
		p.release()
	}
	s.mustAllBeEmpty(names[0], names[299])
	s.party(d, names[:32]...).acquire().release() // at least this many
	s.mustAllBeEmpty(names[0], names[31])
}

// testBatchLossOfOne checks that only the lost claim ends, and that the others are renewed.
func testBatchLossOfOne(s *scene) {
	p := s.party(s.open(), "a", "b", "c").acquire()
	s.backend.Delete(s.T, "b")
	if cause := s.wait(p.members[1].req.Lost, s.TTL+patience, "word of the loss"); !errors.Is(cause, interlock.ErrLost) {
		s.Fatalf("lost with %v", cause)
	}
	time.Sleep(2 * s.TTL)
	for _, i := range []int{0, 2} {
		if s.mustHold(p.members[i]); len(p.members[i].req.Lost) > 0 || !p.members[i].valid() {
			s.Fatalf("%q was lost too", p.members[i].req.Name)
		}
	}
	p.release()
	s.mustAllBeEmpty("a", "b", "c")
}

func testBatchRepeatConverges(s *scene) {
	p := s.party(s.open(), "a", "b").acquire()
	first := []interlock.Token{p.members[0].grant.Token, p.members[1].grant.Token}
	p.acquire()
	if p.members[0].grant.Token != first[0] || p.members[1].grant.Token != first[1] {
		s.Fatalf("tokens %v became those of %+v", first, p.members)
	}
	p.mustHold()
	p.release()
	p.release()
	s.mustAllBeEmpty("a", "b")
}

// testBatchRepeatAcquiresMissing repeats a batch of which an operator deleted one name.
func testBatchRepeatAcquiresMissing(s *scene) {
	p := s.party(s.open(), "a", "b").acquire()
	lost := p.members[1].grant.Token
	s.backend.Delete(s.T, "b")
	testbed.Eventually(s, "the driver knows, and they are held again", s.TTL+patience, func() bool {
		return p.try(s.Context()) == nil && p.members[1].grant.Token != lost
	})
	p.mustHold()
	s.mustIncrease([]interlock.Token{lost, p.members[1].grant.Token})
	p.release()
	s.mustAllBeEmpty("a", "b")
}

// testBatchRepeatReleasesOnConflict repeats a batch of which another owner holds one name.
func testBatchRepeatReleasesOnConflict(s *scene) {
	p := s.party(s.open(), "a", "b", "c").acquire()
	s.backend.Delete(s.T, "b")
	thief := s.contender(s.open(), "b").acquire()
	testbed.Eventually(s, "the driver knows, and refuses", s.TTL+patience, func() bool {
		return errors.Is(p.try(s.Context()), interlock.ErrHeld)
	})
	s.mustAllBeEmpty("a", "c")
	s.mustHold(thief)
	thief.release()
}

// testBatchLostReply checks a batch that is repeated, and one that is released.
func testBatchLostReply(s *scene) {
	d := s.open()
	for _, repeat := range []bool{true, false} {
		p := s.party(d, "a", "b")
		s.faults.(ReplyDropper).DropReplies()
		ctx, cancel := context.WithTimeout(s.Context(), s.TTL/4)
		err := p.try(ctx)
		cancel()
		s.faults.Heal()
		s.mustBeKind(err, interlock.Uncertain)
		if repeat {
			testbed.Eventually(s, "the repetition is granted", patience, func() bool { return p.try(s.Context()) == nil })
			p.mustHold()
		}
		for _, c := range p.members {
			c.persistRelease()
		}
		s.mustAllBeEmpty("a", "b")
	}
}

func testBatchCrashedHolder(s *scene) {
	d := s.open()
	s.party(d, "a", "b").acquire()
	s.backend.Crash(s.T, d)
	next := s.party(s.open(), "b", "a")
	testbed.Eventually(s, "the names are free again", 3*s.TTL+patience, func() bool { return next.try(s.Context()) == nil })
	next.release()
}

func testBatchContract(s *scene) {
	d := s.open()
	ended, cancel := context.WithCancelCause(s.Context())
	cancel(errors.New("enough"))
	err := s.party(d, "a", "b").try(ended)
	if s.mustBeKind(err, interlock.Definite); !errors.Is(err, context.Cause(ended)) {
		s.Fatalf("a context that had ended: %v", err)
	}
	twice := s.party(d, "a", "b")
	twice.members[1].req.Owner = twice.members[0].req.Owner
	for what, p := range map[string]*party{
		"no names": s.party(d), "a name that comes twice": s.party(d, "a", "b", "a"),
		"an owner that comes twice": twice, "an empty name": s.party(d, "a", ""),
	} {
		if err := p.try(s.Context()); interlock.Kind(err) != interlock.Bug || err == nil {
			s.Fatalf("%s: %v", what, err)
		}
	}
	s.mustAllBeEmpty("a", "b")
	testbed.OK(s, d.Close(s.Context()))
	if err := s.party(d, "a", "b").try(s.Context()); !errors.Is(err, interlock.ErrClosed) {
		s.Fatalf("after Close: %v", err)
	}
}
