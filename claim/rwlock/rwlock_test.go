package rwlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/rwlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const (
	name = "prices"
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

func (b *bench) open() *memory.Driver { return b.space.Open(&memory.Options{TTL: ttl}) }

// process opens a driver with a lock on it, both closed at the end.
func (b *bench) process(o *rwlock.Options) (*rwlock.Lock, *memory.Driver) {
	b.Helper()
	d := b.open()
	l, err := rwlock.New(d, o)
	testbed.OK(b, err)
	testbed.CloseAfter(b, d)
	testbed.CloseAfter(b, l)
	return l, d
}

func (b *bench) read(l *rwlock.Lock) *rwlock.ReadClaim {
	b.Helper()
	r, err := l.AcquireRead(b.Context(), name)
	testbed.OK(b, err)
	return r
}

func (b *bench) write(l *rwlock.Lock) *rwlock.WriteClaim {
	b.Helper()
	w, err := l.AcquireWrite(b.Context(), name)
	testbed.OK(b, err)
	return w
}

type releaser interface{ Release(context.Context) error }

func (b *bench) release(c releaser) {
	b.Helper()
	testbed.OK(b, c.Release(b.Context()))
}

// residue returns the locks in the backend.
func (b *bench) residue() []driver.LockState {
	d := b.space.Open(nil)
	defer d.Close(context.Background())
	states, _, _ := d.Locks(b.Context(), "", 100)
	return states
}

// mustBeEmpty requires that nothing is left in the backend.
func (b *bench) mustBeEmpty() {
	b.Helper()
	if left := b.residue(); len(left) != 0 {
		b.Errorf("left: %+v", left)
	}
}

func TestReadersShareAndAWriterIsAlone(t *testing.T) {
	inBubble(t, func(b *bench) {
		here, _ := b.process(nil)
		there, _ := b.process(nil)
		first, second := b.read(here), b.read(there)
		if !first.Valid() || !second.Valid() || first.Name() != name || first.Owner() == second.Owner() {
			b.Fatalf("two readers: %v %v, %q", first.Valid(), second.Valid(), first.Name())
		}
		written := make(chan *rwlock.WriteClaim)
		go func() { written <- b.write(there) }()
		b.release(first)
		time.Sleep(3*ttl + time.Second) // not even after a read without an event
		select {
		case <-written:
			b.Fatal("a writer came in while one reads")
		default:
		}
		began := time.Now()
		b.release(second)
		w := <-written
		if took := time.Since(began); took > 0 {
			b.Errorf("the writer was granted %v after the last reader had left", took)
		}
		if _, err := here.TryRead(b.Context(), name); !errors.Is(err, interlock.ErrHeld) {
			b.Errorf("read beside a writer: %v", err)
		}
		b.release(w)
		again := b.write(here)
		if again.Token() <= w.Token() || again.Name() != name {
			b.Errorf("token %d after %d, name %q", again.Token(), w.Token(), again.Name())
		}
		b.release(again)
		b.mustBeEmpty()
	})
}

// TestReadersWaitBehindAWriterThatWaits: new readers do not starve a writer, and later readers are
// served after it.
func TestReadersWaitBehindAWriterThatWaits(t *testing.T) {
	inBubble(t, func(b *bench) {
		readers, _ := b.process(nil)
		writer, _ := b.process(nil)
		before := b.read(readers)
		var mu sync.Mutex
		var order []string
		note := func(who string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, who)
		}
		var all sync.WaitGroup
		all.Go(func() {
			w := b.write(writer)
			note("writer")
			time.Sleep(time.Second)
			b.release(w)
		})
		synctest.Wait()
		for range 3 {
			all.Go(func() {
				r := b.read(readers)
				note("reader")
				time.Sleep(time.Second)
				b.release(r)
			})
		}
		synctest.Wait()
		if len(order) != 0 {
			b.Fatalf("%v went past", order)
		}
		b.release(before)
		began := time.Now()
		all.Wait()
		if strings.Join(order, " ") != "writer reader reader reader" {
			b.Fatalf("order %v", order)
		}
		if took := time.Since(began); took != 2*time.Second {
			b.Fatalf("it took %v: the readers after the writer did not share", took)
		}
	})
}

func TestADeadReaderCostsItsLease(t *testing.T) {
	inBubble(t, func(b *bench) {
		dying, d := b.process(nil)
		writer, _ := b.process(nil)
		r := b.read(dying)
		_ = d.Close(b.Context()) // it renews nothing any more
		began := time.Now()
		w := b.write(writer)
		if r.Valid() {
			b.Error("the reader believes in its share beside a writer")
		}
		if took := time.Since(began); took < ttl-ttl/3 || took > ttl+ttl/10 {
			b.Errorf("the writer waited %v, the lease was %v", took, ttl)
		}
		b.release(w)
	})
}

// slow is a process that does not renew its door. It is paused for longer than the door's lease
// just before it requests a reader's lock.
type slow struct {
	*memory.Driver
	door    *memory.Driver
	stopped func()
	looked  func() // before a listing is answered
}

func (s *slow) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	if s.looked != nil {
		s.looked()
	}
	return s.Driver.Locks(ctx, prefix, limit)
}

func (s *slow) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if strings.HasSuffix(r.Name, "#rw") {
		return s.door.Acquire(ctx, r)
	}
	s.stopped()
	return s.Driver.Acquire(ctx, r)
}

func (s *slow) Release(ctx context.Context, name, owner string) error {
	return errors.Join(s.Driver.Release(ctx, name, owner), s.door.Release(ctx, name, owner))
}

// TestAReaderWhoseTurnRanOutIsNone: a writer listed the readers, and found none, before this one
// was granted its lock.
func TestAReaderWhoseTurnRanOutIsNone(t *testing.T) {
	inBubble(t, func(b *bench) {
		d := &slow{Driver: b.open(), door: b.open()}
		defer d.Driver.Close(b.Context())
		late, err := rwlock.New(d, nil)
		testbed.OK(b, err)
		defer late.Close(b.Context())
		writer, _ := b.process(nil)
		written := make(chan *rwlock.WriteClaim, 1)
		turns := 0
		d.stopped = func() {
			if turns++; turns == 1 {
				_ = d.door.Close(b.Context()) // it renews nothing any more
				written <- b.write(writer)
				d.door = b.open()
			}
		}
		defer func() { _ = d.door.Close(b.Context()) }()
		told := make(chan *rwlock.ReadClaim, 1)
		go func() { told <- b.read(late) }()
		w := <-written
		time.Sleep(ttl)
		if len(told) > 0 {
			b.Fatal("it reads beside a writer")
		}
		b.release(w)
		b.release(<-told)
		synctest.Wait()
		if left := b.residue(); turns != 2 || len(left) != 0 {
			b.Fatalf("%d turns, left: %+v", turns, left)
		}
	})
}

// deaf is a driver without hints.
type deaf struct{ *memory.Driver }

func (deaf) Watch(ctx context.Context, _ string, changed func(string)) error {
	changed("")
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestAWriterLooksWhenAReaderExpires(t *testing.T) {
	inBubble(t, func(b *bench) {
		dying, d := b.process(nil)
		own := deaf{b.open()}
		defer own.Close(b.Context())
		writer, err := rwlock.New(own, nil)
		testbed.OK(b, err)
		defer writer.Close(b.Context())
		b.read(dying)
		_ = d.Close(b.Context())
		time.Sleep(time.Second)
		began := time.Now()
		w := b.write(writer)
		if took := time.Since(began); took != ttl-time.Second {
			b.Errorf("after %v", took)
		}
		b.release(w)
	})
}

// TestAWriterWhoseTurnRanOutComesBack: listing the readers took so long that the door may have
// another holder.
func TestAWriterWhoseTurnRanOutComesBack(t *testing.T) {
	inBubble(t, func(b *bench) {
		d := &slow{Driver: b.open(), door: b.open()}
		defer d.Driver.Close(b.Context())
		late, err := rwlock.New(d, nil)
		testbed.OK(b, err)
		defer late.Close(b.Context())
		looks := 0
		d.looked = func() {
			if looks++; looks == 1 {
				_ = d.door.Close(b.Context())
				time.Sleep(2 * ttl)
				d.door = b.open()
			}
		}
		defer func() { _ = d.door.Close(b.Context()) }()
		w := b.write(late)
		if !w.Valid() || looks != 2 {
			b.Errorf("valid %v after %d looks", w.Valid(), looks)
		}
		b.release(w)
	})
}

// TestAWriterBecomesAReader: no writer acquires in between, and other readers do.
func TestAWriterBecomesAReader(t *testing.T) {
	inBubble(t, func(b *bench) {
		here, _ := b.process(nil)
		there, d := b.process(nil)
		w := b.write(here)
		wrote := make(chan *rwlock.WriteClaim, 1)
		go func() { wrote <- b.write(there) }()
		synctest.Wait()
		r, err := w.Downgrade(b.Context())
		if err != nil || !r.Valid() || w.Valid() || r.Name() != w.Name() {
			b.Fatalf("downgraded: %v", err)
		}
		time.Sleep(2 * ttl)
		if len(wrote) > 0 {
			b.Fatal("a writer came while it is read")
		}
		b.release(r)
		b.release(<-wrote)

		w = b.write(here)
		r, err = w.Downgrade(b.Context())
		testbed.OK(b, err)
		b.release(b.read(there)) // others may read
		b.release(r)

		w = b.write(there)
		_ = d.Close(b.Context()) // it renews no more
		time.Sleep(2 * ttl)
		if _, err := w.Downgrade(b.Context()); err == nil {
			b.Error("a claim that has ended was downgraded")
		}
		synctest.Wait()
		b.mustBeEmpty()
	})
}

func TestCancelledWaitersLeaveNothing(t *testing.T) {
	inBubble(t, func(b *bench) {
		here, _ := b.process(nil)
		there, _ := b.process(nil)
		cause := errors.New("changed my mind")
		gone := func(wait func(context.Context) error) {
			ctx, cancel := context.WithCancelCause(b.Context())
			told := make(chan error)
			go func() { told <- wait(ctx) }()
			synctest.Wait()
			cancel(cause)
			if err := <-told; !errors.Is(err, cause) || interlock.Kind(err) != interlock.Definite {
				b.Errorf("got %v (%v)", err, interlock.Kind(err))
			}
			synctest.Wait()
		}
		r := b.read(here)
		gone(func(ctx context.Context) error { _, err := there.AcquireWrite(ctx, name); return err })
		if left := b.residue(); len(left) != 1 {
			b.Fatalf("left: %+v", left)
		}
		b.release(r)
		w := b.write(here)
		gone(func(ctx context.Context) error { _, err := there.AcquireRead(ctx, name); return err })
		gone(func(ctx context.Context) error { _, err := there.AcquireWrite(ctx, name); return err })
		b.release(w)
		b.mustBeEmpty()
	})
}

func TestTry(t *testing.T) {
	inBubble(t, func(b *bench) {
		here, _ := b.process(nil)
		there, _ := b.process(nil)
		r, err := here.TryRead(b.Context(), name)
		testbed.OK(b, err)
		_, err = there.TryWrite(b.Context(), name)
		held := (*interlock.HeldError)(nil)
		if !errors.As(err, &held) || held.Name != name || held.Owner != r.Owner() {
			b.Fatalf("write beside a reader: %v", err)
		}
		b.release(r)
		w, err := there.TryWrite(b.Context(), name)
		testbed.OK(b, err)
		if _, err := here.TryWrite(b.Context(), name); !errors.As(err, &held) || held.Owner != w.Owner() {
			b.Fatalf("write beside a writer: %v", err)
		}
		b.release(w)
		b.mustBeEmpty()
	})
}

func TestWaitIsBounded(t *testing.T) {
	inBubble(t, func(b *bench) {
		here, _ := b.process(nil)
		there, _ := b.process(&rwlock.Options{Lock: &lock.Options{Wait: 2 * time.Second}})
		bounded := func(wait func() error, owner string) {
			began := time.Now()
			err := wait()
			if held, found := errors.AsType[*interlock.HeldError](err); !found || held.Name != name || held.Owner != owner || time.Since(began) != 2*time.Second {
				b.Errorf("after %v: %v", time.Since(began), err)
			}
		}
		r := b.read(here)
		bounded(func() error { _, err := there.AcquireWrite(b.Context(), name); return err }, "")
		b.release(r)
		w := b.write(here)
		bounded(func() error { _, err := there.AcquireRead(b.Context(), name); return err }, w.Owner())
		b.release(w)
	})
}

// outage is a driver whose answers are lost.
type outage struct{ *memory.Driver }

var errReplyLost = &interlock.Error{Op: "test", Kind: interlock.Uncertain, Err: errors.New("the reply was lost")}

func (outage) Acquire(context.Context, driver.Request) (driver.Grant, error) {
	return driver.Grant{}, errReplyLost
}

func TestWaitDuringAnOutageTellsOfTheOutage(t *testing.T) {
	inBubble(t, func(b *bench) {
		d := outage{b.open()}
		defer d.Close(b.Context())
		l, err := rwlock.New(d, &rwlock.Options{Lock: &lock.Options{Wait: time.Second}})
		testbed.OK(b, err)
		defer l.Close(b.Context())
		if _, err := l.AcquireRead(b.Context(), name); !errors.Is(err, errReplyLost) || errors.Is(err, interlock.ErrHeld) {
			b.Errorf("got %v", err)
		}
	})
}

// TestReentryIsRefused: a reader that requests a write claim, or a second read claim, would wait
// for itself.
func TestReentryIsRefused(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		refused := func(ctx context.Context) {
			_, read := l.AcquireRead(ctx, name)
			_, write := l.AcquireWrite(ctx, name)
			if !errors.Is(read, interlock.ErrReentered) || !errors.Is(write, interlock.ErrReentered) {
				b.Errorf("read %v, write %v", read, write)
			}
		}
		err := l.Read(b.Context(), name, func(ctx context.Context, r *rwlock.ReadClaim) error {
			refused(ctx)
			refused(r.Context())
			return l.Read(ctx, "other", func(context.Context, *rwlock.ReadClaim) error { return nil })
		})
		testbed.OK(b, err)
		err = l.Write(b.Context(), name, func(ctx context.Context, c interlock.Claim) error {
			refused(ctx)
			refused(c.Context())
			return nil
		})
		testbed.OK(b, err)
		r := b.read(l)
		ended := context.WithoutCancel(r.Context())
		b.release(r)
		if r, err = l.AcquireRead(ended, name); err != nil {
			b.Fatalf("in a context whose claim has ended: %v", err)
		}
		b.release(r)
	})
}

func TestTheWorkIsToldOfAnEarlyEnd(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		boom := errors.New("boom")
		err := l.Read(b.Context(), name, func(ctx context.Context, r *rwlock.ReadClaim) error {
			for _, state := range b.residue() {
				b.space.Revoke(state.Name)
			}
			<-ctx.Done()
			if context.Cause(ctx) != interlock.ErrLost || r.Valid() || r.Remaining() > 0 {
				b.Errorf("cause %v, valid %v", context.Cause(ctx), r.Valid())
			}
			return boom
		})
		if !errors.Is(err, interlock.ErrLost) || !errors.Is(err, boom) || interlock.Kind(err) != interlock.Uncertain {
			b.Errorf("read: %v", err)
		}
		err = l.Write(b.Context(), name, func(ctx context.Context, c interlock.Claim) error {
			_ = d.Close(b.Context())
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, interlock.ErrExpired) {
			b.Errorf("write: %v", err)
		}
	})
}

func TestTheWorkEndsWithTheCaller(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		work := func(ctx context.Context) error {
			if _, ok := ctx.Deadline(); !ok {
				b.Error("the work does not see the caller's deadline")
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		err := l.Read(ctx, name, func(ctx context.Context, _ *rwlock.ReadClaim) error { return work(ctx) })
		if err != context.DeadlineExceeded || len(b.residue()) != 0 {
			b.Fatalf("got %v", err)
		}
	})
}

// TestNamesDoNotMix: a listing finds exactly the readers of a name, for any other names.
func TestNamesDoNotMix(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		for _, other := range []string{"a/b", "a#r#", "a#rw", "a%23r%23", "A", "a#r#x", "aa"} {
			r, err := l.AcquireRead(b.Context(), other)
			testbed.OK(b, err)
			w, err := l.TryWrite(b.Context(), "a")
			if err != nil {
				b.Fatalf("a reader of %q keeps a writer of %q out: %v", other, "a", err)
			}
			b.release(w)
			b.release(r)
		}
		for _, bad := range []string{"", strings.Repeat("x", driver.MaxName), strings.Repeat("#", 170)} {
			if _, err := l.TryRead(b.Context(), bad); !errors.Is(err, interlock.ErrName) {
				b.Errorf("a name of %d bytes: %v", len(bad), err)
			}
		}
		longest := strings.Repeat("x", driver.MaxName-len("#r#")-26)
		r, err := l.TryRead(b.Context(), longest)
		testbed.OK(b, err)
		b.release(r)
	})
}

// bare is a driver with only the required methods.
type bare struct{ driver.Fenced }

func TestADriverWithoutAViewIsRefused(t *testing.T) {
	d := memory.NewSpace().Open(nil)
	defer d.Close(t.Context())
	_, err := rwlock.New(bare{d}, nil)
	if unmet, found := errors.AsType[*interlock.UnmetError](err); !found || len(unmet.Unmet) != 2 || unmet.Driver != "memory" {
		t.Fatalf("got %v", err)
	}
}

// TestRenew: claims without renewal last as long as they are renewed by hand.
func TestRenew(t *testing.T) {
	inBubble(t, func(b *bench) {
		const own = ttl / 2
		l, _ := b.process(&rwlock.Options{Lock: &lock.Options{TTL: own, NoRenewal: true}})
		hold := func(c releaser, renew func(context.Context) error, valid func() bool) {
			for range 3 {
				time.Sleep(own * 2 / 3)
				testbed.OK(b, renew(b.Context()))
			}
			held := valid()
			time.Sleep(own)
			if !held || valid() {
				b.Errorf("valid %v when it was renewed, %v after its lease", held, valid())
			}
			b.release(c)
		}
		r := b.read(l)
		hold(r, r.Renew, r.Valid)
		w := b.write(l)
		hold(w, w.Renew, w.Valid)
	})
}
