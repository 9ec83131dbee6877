package semaphore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/semaphore"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const (
	name = "reports"
	ttl  = 6 * time.Second
)

// bench is one space and the processes on it, in virtual time.
type bench struct {
	*testing.T
	space *memory.Space
}

func inBubble(t *testing.T, test func(*bench)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		test(&bench{t, memory.NewSpace()})
	})
}

// counting is a driver that counts its requests.
type counting struct {
	*memory.Driver
	mu       sync.Mutex
	requests int
	watches  int
	deaf     bool  // it gives no hints
	refuse   error // its answer to a request for a slot
}

func (c *counting) count(n *int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*n++
}

func (c *counting) spent() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests
}

func (c *counting) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	c.count(&c.requests)
	if c.refuse != nil && !strings.HasSuffix(r.Name, "#door") {
		return driver.Grant{}, c.refuse
	}
	return c.Driver.Acquire(ctx, r)
}

func (c *counting) Release(ctx context.Context, name, owner string) error {
	c.count(&c.requests)
	return c.Driver.Release(ctx, name, owner)
}

func (c *counting) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	c.count(&c.requests)
	return c.Driver.Locks(ctx, prefix, limit)
}

func (c *counting) Watch(ctx context.Context, prefix string, changed func(string)) error {
	c.count(&c.watches)
	if c.deaf {
		changed("")
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return c.Driver.Watch(ctx, prefix, changed)
}

// process opens a driver with a semaphore on it, both closed at the end.
func (b *bench) process(permits int, o *semaphore.Options) (*semaphore.Semaphore, *counting) {
	b.Helper()
	d := &counting{Driver: b.space.Open(&memory.Options{TTL: ttl})}
	s, err := semaphore.New(d, permits, o)
	testbed.OK(b, err)
	testbed.CloseAfter(b, d)
	testbed.CloseAfter(b, s)
	return s, d
}

func (b *bench) acquire(s *semaphore.Semaphore) *semaphore.Permit {
	b.Helper()
	p, err := s.Acquire(b.Context(), name)
	testbed.OK(b, err)
	return p
}

func (b *bench) release(permits ...*semaphore.Permit) {
	b.Helper()
	for _, p := range permits {
		testbed.OK(b, p.Release(b.Context()))
	}
}

// residue returns the names of the locks in the backend.
func (b *bench) residue() (names []string) {
	d := b.space.Open(nil)
	defer d.Close(context.Background())
	states, _, _ := d.Locks(b.Context(), "", 100)
	for _, s := range states {
		names = append(names, s.Name)
	}
	return names
}

// mustBeEmpty requires that nothing is left in the backend.
func (b *bench) mustBeEmpty() {
	b.Helper()
	if left := b.residue(); len(left) != 0 {
		b.Errorf("left: %+v", left)
	}
}

// waits starts waiting for a permit, and returns when it does.
func (b *bench) waits(s *semaphore.Semaphore) <-chan *semaphore.Permit {
	told := make(chan *semaphore.Permit, 1)
	go func() { told <- b.acquire(s) }()
	synctest.Wait()
	return told
}

func TestNoMoreThanThePermits(t *testing.T) {
	inBubble(t, func(b *bench) {
		here, _ := b.process(3, nil)
		there, _ := b.process(3, nil)
		held := []*semaphore.Permit{b.acquire(here), b.acquire(there), b.acquire(here)}
		var slots []int
		for _, p := range held {
			slots = append(slots, p.Slot())
			if !p.Valid() || p.Name() != name || p.Claim().Token() <= 0 || p.Claim().Name() != p.Resource() {
				b.Errorf("permit %+v", p)
			}
		}
		slices.Sort(slots)
		if !slices.Equal(slots, []int{0, 1, 2}) {
			b.Fatalf("slots %v", slots)
		}
		told := b.waits(there)
		time.Sleep(5*ttl + time.Second) // not even after a read without an event
		if len(told) > 0 {
			b.Fatal("a fourth permit of three")
		}
		began, freed := time.Now(), held[1]
		b.release(freed)
		next := <-told
		if took := time.Since(began); took > 0 || next.Slot() != freed.Slot() {
			b.Errorf("after %v: slot %d, slot %d was given up", took, next.Slot(), freed.Slot())
		}
		if next.Claim().Token() <= freed.Claim().Token() || next.Resource() != freed.Resource() {
			b.Errorf("token %d of %q after %d of %q", next.Claim().Token(), next.Resource(), freed.Claim().Token(), freed.Resource())
		}
		b.release(held[0], next, held[2])
		b.mustBeEmpty()
	})
}

func TestWaitersAreServedInOrderAndOneOfThemWatches(t *testing.T) {
	inBubble(t, func(b *bench) {
		holder, _ := b.process(1, nil)
		p := b.acquire(holder)
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		var drivers []*counting
		for i := range 6 {
			s, d := b.process(1, nil)
			drivers = append(drivers, d)
			all.Go(func() {
				p := b.acquire(s)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				b.release(p)
			})
			synctest.Wait()
		}
		watches := 0
		for _, d := range drivers {
			watches += d.watches
		}
		if watches != 1 {
			b.Errorf("%d of 6 waiters watch", watches)
		}
		b.release(p)
		all.Wait()
		if !slices.IsSorted(order) || len(order) != 6 {
			b.Fatalf("order %v", order)
		}
	})
}

func TestADeadHoldersPermitExpires(t *testing.T) {
	inBubble(t, func(b *bench) {
		dying, d := b.process(2, nil)
		living, _ := b.process(2, nil)
		dead, kept := b.acquire(dying), b.acquire(living)
		_ = d.Driver.Close(b.Context())
		began := time.Now()
		p := b.acquire(living)
		if took := time.Since(began); took > ttl+ttl/10 || dead.Valid() || p.Slot() != dead.Slot() {
			b.Errorf("after %v: slot %d, %d was the dead one's, valid %v", took, p.Slot(), dead.Slot(), dead.Valid())
		}
		if p.Claim().Token() <= dead.Claim().Token() {
			b.Errorf("token %d after %d", p.Claim().Token(), dead.Claim().Token())
		}
		b.release(p, kept)
	})
}

func TestCancelledWaitersLeaveNothing(t *testing.T) {
	inBubble(t, func(b *bench) {
		holder, _ := b.process(1, nil)
		waiter, _ := b.process(1, nil)
		p := b.acquire(holder)
		cause := errors.New("changed my mind")
		ctx, cancel := context.WithCancelCause(b.Context())
		told := make(chan error)
		for range 2 { // one in the door, one waiting for it
			go func() { _, err := waiter.Acquire(ctx, name); told <- err }()
		}
		synctest.Wait()
		cancel(cause)
		for range 2 {
			if err := <-told; !errors.Is(err, cause) || interlock.Kind(err) != interlock.Definite {
				b.Errorf("got %v (%v)", err, interlock.Kind(err))
			}
		}
		synctest.Wait()
		if left := b.residue(); !slices.Equal(left, []string{p.Resource()}) {
			b.Fatalf("left: %v", left)
		}
		b.release(p)
	})
}

func TestTryAndWait(t *testing.T) {
	inBubble(t, func(b *bench) {
		s, d := b.process(2, &semaphore.Options{Lock: &lock.Options{Wait: time.Second}})
		first, second := b.acquire(s), b.acquire(s)
		before := d.spent()
		_, err := s.TryAcquire(b.Context(), name)
		if held, found := errors.AsType[*interlock.HeldError](err); !found || held.Name != name {
			b.Errorf("try: %v", err)
		}
		if spent := d.spent() - before; spent != 2 {
			b.Errorf("%d requests to be refused by this process's own permits, not 2", spent)
		}
		began := time.Now()
		_, err = s.Acquire(b.Context(), name)
		if !errors.Is(err, interlock.ErrHeld) || time.Since(began) != time.Second {
			b.Errorf("after %v: %v", time.Since(began), err)
		}
		b.release(first)
		third, err := s.TryAcquire(b.Context(), name)
		testbed.OK(b, err)
		b.release(second, third)
		b.mustBeEmpty()
	})
}

func TestFourRequests(t *testing.T) {
	inBubble(t, func(b *bench) {
		s, d := b.process(10, nil)
		b.release(b.acquire(s))
		if d.spent() != 4 || d.watches != 0 {
			b.Fatalf("%d requests and %d watches", d.spent(), d.watches)
		}
	})
}

func TestOthersWithMorePermitsAreNoticed(t *testing.T) {
	inBubble(t, func(b *bench) {
		few, _ := b.process(2, nil)
		many, _ := b.process(4, nil)
		held := []*semaphore.Permit{b.acquire(many), b.acquire(many), b.acquire(many), b.acquire(many)}
		ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
		defer cancel()
		_, err := few.Acquire(ctx, name)
		if !errors.Is(err, semaphore.ErrSize) || interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), name) {
			b.Errorf("got %v (%v)", err, interlock.Kind(err))
		}
		b.release(held...)
		b.release(b.acquire(few))
		b.mustBeEmpty()
	})
}

// TestHintsBeyondTheSlots: a released slot beyond ours is ignored.
func TestHintsBeyondTheSlots(t *testing.T) {
	inBubble(t, func(b *bench) {
		s, d := b.process(2, nil)
		held := []*semaphore.Permit{b.acquire(s), b.acquire(s)}
		waiter, _ := b.process(2, nil)
		told := b.waits(waiter)
		others, err := lock.NewFenced(d, nil)
		testbed.OK(b, err)
		defer others.Close(b.Context())
		c, err := others.Acquire(b.Context(), name+"#s#2")
		testbed.OK(b, err)
		synctest.Wait()
		testbed.OK(b, c.Release(b.Context()))
		synctest.Wait()
		select {
		case p := <-told:
			b.Fatalf("a permit in slot %d of 2", p.Slot())
		default:
		}
		b.release(held...)
		b.release(<-told)
	})
}

func TestAWaiterLooksWhenAHolderExpires(t *testing.T) {
	inBubble(t, func(b *bench) {
		dying, d := b.process(1, nil)
		waiter, own := b.process(1, nil)
		own.deaf = true
		b.acquire(dying)
		_ = d.Driver.Close(b.Context())
		time.Sleep(time.Second)
		began := time.Now()
		p := b.acquire(waiter)
		if took := time.Since(began); took != ttl-time.Second {
			b.Errorf("after %v", took)
		}
		b.release(p)
	})
}

// TestAWaiterAsksForWhatIsFree: while all slots are taken, a waiter lists the holders and tries
// none of them.
func TestAWaiterAsksForWhatIsFree(t *testing.T) {
	inBubble(t, func(b *bench) {
		holder, _ := b.process(3, nil)
		held := []*semaphore.Permit{b.acquire(holder), b.acquire(holder), b.acquire(holder)}
		waiter, d := b.process(3, nil)
		told := b.waits(waiter)
		before := d.spent()
		time.Sleep(10 * ttl)
		if spent := d.spent() - before; spent < 10 || spent > 30 {
			b.Errorf("%d requests in %v", spent, 10*ttl)
		}
		b.release(held...)
		b.release(<-told)
	})
}

func TestAnOutageIsTold(t *testing.T) {
	inBubble(t, func(b *bench) {
		s, d := b.process(2, nil)
		d.refuse = &interlock.Error{Op: "acquire", Kind: interlock.Definite, Err: errors.New("permission denied")}
		ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
		defer cancel()
		for _, acquire := range []func(context.Context, string) (*semaphore.Permit, error){s.Acquire, s.TryAcquire} {
			if _, err := acquire(ctx, name); !errors.Is(err, d.refuse) || interlock.Kind(err) != interlock.Definite {
				b.Errorf("got %v", err)
			}
		}
		b.mustBeEmpty()
	})
}

func TestDo(t *testing.T) {
	inBubble(t, func(b *bench) {
		s, d := b.process(1, nil)
		boom := errors.New("boom")
		err := s.Do(b.Context(), name, func(ctx context.Context, p *semaphore.Permit) error {
			time.Sleep(3 * ttl) // renewed meanwhile
			if !p.Valid() || ctx.Err() != nil {
				b.Error("the permit ended")
			}
			return boom
		})
		if err != boom || len(b.residue()) != 0 {
			b.Fatalf("got %v, left %v", err, b.residue())
		}
		err = s.Do(b.Context(), name, func(ctx context.Context, p *semaphore.Permit) error {
			_ = d.Driver.Close(b.Context())
			<-ctx.Done()
			if context.Cause(ctx) != interlock.ErrExpired || p.Valid() || p.Remaining() > 0 {
				b.Errorf("cause %v, valid %v", context.Cause(ctx), p.Valid())
			}
			return nil
		})
		if !errors.Is(err, interlock.ErrExpired) || interlock.Kind(err) != interlock.Uncertain {
			b.Fatalf("got %v", err)
		}
	})
}

func TestMaxHoldEndsPermits(t *testing.T) {
	inBubble(t, func(b *bench) {
		s, _ := b.process(1, &semaphore.Options{Lock: &lock.Options{MaxHold: 3 * ttl}})
		other, _ := b.process(1, nil)
		p := b.acquire(s)
		began := time.Now()
		next := b.acquire(other)
		if took := time.Since(began); took < 3*ttl || took > 4*ttl || p.Valid() {
			b.Errorf("after %v, valid %v", took, p.Valid())
		}
		b.release(p, next)
	})
}

type bare struct{ driver.Fenced }

func TestWhatIsRefused(t *testing.T) {
	inBubble(t, func(b *bench) {
		s, d := b.process(1, nil)
		for _, bad := range []string{"", strings.Repeat("x", driver.MaxName), strings.Repeat("%", 169)} {
			if _, err := s.Acquire(b.Context(), bad); !errors.Is(err, interlock.ErrName) {
				b.Errorf("a name of %d bytes: %v", len(bad), err)
			}
		}
		for _, n := range []int{0, -1, semaphore.MaxPermits + 1} {
			if _, err := semaphore.New(d, n, nil); interlock.Kind(err) != interlock.Bug {
				b.Errorf("%d permits: %v", n, err)
			}
		}
		if _, err := semaphore.New(bare{d}, 1, nil); !errors.Is(err, interlock.ErrUnmet) {
			b.Errorf("a driver that shows nothing: %v", err)
		}
	})
}

// The longest name has room for every lock behind it, also that of the size.
func TestLongestName(t *testing.T) {
	inBubble(t, func(b *bench) {
		s, _ := b.process(1, &semaphore.Options{Values: b.space.Values()})
		long := strings.Repeat("x", driver.MaxName-len("#s#size"))
		testbed.OK(b, s.Resize(b.Context(), long, semaphore.MaxPermits))
		p, err := s.AcquireN(b.Context(), long, semaphore.MaxPermits)
		testbed.OK(b, err)
		testbed.OK(b, p.Release(b.Context()))
		if _, err := s.Acquire(b.Context(), long+"x"); !errors.Is(err, interlock.ErrName) || !strings.Contains(err.Error(), "are allowed") {
			b.Errorf("a longer name: %v", err)
		}
	})
}

func TestNamesDoNotMix(t *testing.T) {
	inBubble(t, func(b *bench) {
		s, _ := b.process(1, nil)
		p := b.acquire(s)
		for _, other := range []string{"report", "reports/", "reports#s#0", "reports%23s%230", "reports#door"} {
			q, err := s.TryAcquire(b.Context(), other)
			if err != nil {
				b.Fatalf("%q: %v", other, err)
			}
			b.release(q)
		}
		b.release(p)
	})
}

// TestPermitsWithoutRenewal end after their TTL, unless they are renewed by hand. A
// waiter may wait longer than a lease.
func TestPermitsWithoutRenewal(t *testing.T) {
	inBubble(t, func(b *bench) {
		const own = ttl / 2
		o := &semaphore.Options{Lock: &lock.Options{TTL: own, NoRenewal: true}}
		here, _ := b.process(1, o)
		there, _ := b.process(1, o)
		p := b.acquire(here)
		told := b.waits(there)
		for range 6 {
			time.Sleep(own * 2 / 3)
			testbed.OK(b, p.Renew(b.Context()))
		}
		select {
		case <-told:
			b.Fatal("a permit was given out twice")
		default:
		}
		next := <-told
		if p.Valid() || next.Claim().Token() <= p.Claim().Token() {
			b.Errorf("the former permit is valid: %v; token %d after %d", p.Valid(), next.Claim().Token(), p.Claim().Token())
		}
		if err := p.Renew(b.Context()); !errors.Is(err, interlock.ErrExpired) {
			b.Errorf("renewed after its end: %v", err)
		}
		b.release(next)
		b.release(p)
		synctest.Wait()
	})
}

// TestSeveralPermitsAtOnce: an acquire gets all permits in one turn at the door, so two large
// requests do not deadlock.
func TestSeveralPermitsAtOnce(t *testing.T) {
	inBubble(t, func(b *bench) {
		here, _ := b.process(5, nil)
		there, _ := b.process(5, nil)
		mine, err := here.AcquireN(b.Context(), name, 3)
		if err != nil || len(mine) != 3 || !mine.Valid() {
			b.Fatalf("%d permits, %v", len(mine), err)
		}
		if _, err := there.TryAcquireN(b.Context(), name, 3); !errors.Is(err, interlock.ErrHeld) {
			b.Errorf("three of two: %v", err)
		}
		if left := b.residue(); len(left) != 3 {
			b.Errorf("a try left something: %q", left)
		}
		told := make(chan semaphore.Permits, 2)
		for _, s := range []*semaphore.Semaphore{here, there} {
			go func() {
				p, err := s.AcquireN(b.Context(), name, 4)
				if err != nil {
					b.Error(err)
				}
				told <- p
			}()
		}
		time.Sleep(2 * ttl)
		if len(told) > 0 {
			b.Fatal("four of two")
		}
		b.release(mine...)
		for range 2 {
			p := <-told
			if len(p) != 4 {
				b.Fatalf("%d permits", len(p))
			}
			b.release(p...)
		}
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		held, err := here.AcquireN(b.Context(), name, 2)
		testbed.OK(b, err)
		if _, err := there.AcquireN(ctx, name, 4); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("four of three: %v", err)
		}
		b.release(held...)
		synctest.Wait()
		b.mustBeEmpty()
		for n, want := range map[int]interlock.ErrorKind{0: interlock.Bug, -1: interlock.Bug, semaphore.MaxPermits + 1: interlock.Bug, 6: interlock.Definite} {
			if _, err := here.AcquireN(b.Context(), name, n); err == nil || interlock.Kind(err) != want {
				b.Errorf("%d of five: %v", n, err)
			}
		}
		if _, err := here.AcquireN(b.Context(), name, 6); !errors.Is(err, semaphore.ErrSize) {
			b.Errorf("six of five: %v", err)
		}
	})
}

// TestPermitUnderAPermit: a slot that the caller's own context holds is taken, as all others are.
func TestPermitUnderAPermit(t *testing.T) {
	inBubble(t, func(b *bench) {
		for _, reentrant := range []bool{false, true} {
			s, _ := b.process(2, &semaphore.Options{Lock: &lock.Options{Reentrant: reentrant}})
			for range 20 { // slots are tried from a random one
				p := b.acquire(s)
				q, err := s.Acquire(p.Context(), name)
				testbed.OK(b, err)
				if _, err := s.TryAcquire(q.Context(), name); !errors.Is(err, interlock.ErrHeld) {
					b.Errorf("slots %d and %d, then %v", p.Slot(), q.Slot(), err)
				}
				b.release(p, q)
			}
		}
	})
}

// silent is values that answer no Put.
type silent struct{ driver.Values }

func (silent) Put(ctx context.Context, _ string, _ driver.Value) error {
	select {
	case <-ctx.Done():
	case <-time.After(time.Hour):
	}
	return context.Cause(ctx)
}

func TestResizeEndsWithItsContext(t *testing.T) {
	inBubble(t, func(b *bench) {
		s, _ := b.process(1, &semaphore.Options{Values: silent{}})
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		if err := s.Resize(ctx, name, 2); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("got %v", err)
		}
		b.mustBeEmpty()
	})
}

// TestTheNumberOfPermitsIsKeptInTheBackend: every process sees a change, and waiters see it at
// once.
func TestTheNumberOfPermitsIsKeptInTheBackend(t *testing.T) {
	inBubble(t, func(b *bench) {
		o := &semaphore.Options{Values: b.space.Values()}
		here, _ := b.process(1, o)
		there, _ := b.process(7, o) // resized before its first call
		held := b.acquire(here)
		told := b.waits(here)
		began := time.Now()
		testbed.OK(b, there.Resize(b.Context(), name, 2))
		second := <-told
		if took := time.Since(began); took > 100*time.Millisecond {
			b.Errorf("one who waits saw it after %v", took)
		}
		for _, s := range []*semaphore.Semaphore{here, there} {
			if n, err := s.Size(b.Context(), name); n != 2 || err != nil {
				b.Errorf("%d permits, %v", n, err)
			}
			if _, err := s.TryAcquire(b.Context(), name); !errors.Is(err, interlock.ErrHeld) {
				b.Errorf("a third of two: %v", err)
			}
		}
		if n, err := here.Size(b.Context(), "another"); n != 1 || err != nil {
			b.Errorf("another name has %d permits, %v", n, err)
		}

		// With fewer permits, held ones stay held, and the excess is not granted again.
		testbed.OK(b, here.Resize(b.Context(), name, 1))
		low, high := held, second
		if low.Slot() > high.Slot() {
			low, high = high, low
		}
		if !low.Valid() || !high.Valid() {
			b.Error("a permit that is held was taken away")
		}
		b.release(low)
		next, err := there.TryAcquire(b.Context(), name)
		if err != nil || next.Slot() != 0 {
			b.Fatalf("the only permit: %v", err)
		}
		b.release(high)
		if _, err := there.TryAcquire(b.Context(), name); !errors.Is(err, interlock.ErrHeld) {
			b.Errorf("a second of one: %v", err)
		}
		b.release(next)

		none, _ := b.process(3, nil)
		for n, s := range map[int]*semaphore.Semaphore{2: none, 0: here, semaphore.MaxPermits + 1: here} {
			if err := s.Resize(b.Context(), name, n); interlock.Kind(err) != interlock.Bug {
				b.Errorf("resized to %d: %v", n, err)
			}
		}
		testbed.OK(b, b.space.Values().Put(b.Context(), "bad#s#size", driver.Value{Token: held.Claim().Token(), Data: []byte("many")}))
		if _, err := here.Acquire(b.Context(), "bad"); interlock.Kind(err) != interlock.Definite {
			b.Errorf("a size that is none: %v", err)
		}
	})
}
