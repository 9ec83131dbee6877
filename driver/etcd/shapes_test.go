package etcd

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/rwlock"
	"github.com/interlock-dev/interlock/claim/semaphore"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// shapes is one process with a path of its own, and what is made of its locks.
type shapes struct {
	d       driver.Fenced
	shared  *rwlock.Lock
	permits *semaphore.Semaphore
	locks   *lock.Fenced
}

// newShapes opens a process whose readers seal fence.
func newShapes(t *testing.T, p *paths.Server[driver.Fenced], fence *Fence) *shapes {
	t.Helper()
	d, err := p.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
		return Open(t.Context(), dial(t, path.Addr()), &Options{TTL: suiteTTL, Prefix: "shapes/"})
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &shapes{d: d}
	seal := func(ctx context.Context, name string, door interlock.Claim) error {
		return fence.Enter(ctx, driver.Raise{Resource: name, Token: door.Token()})
	}
	var failed [3]error
	s.shared, failed[0] = rwlock.New(d, &rwlock.Options{Seal: seal})
	s.permits, failed[1] = semaphore.New(d, 2, nil)
	s.locks, failed[2] = lock.NewFenced(d, nil)
	if err := errors.Join(failed[:]...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := errors.Join(s.shared.Close(ctx), s.permits.Close(ctx), s.locks.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestShapesUnderLoad: readers never meet a writer, permits never exceed their
// number, and no order of names deadlocks.
func TestShapesUnderLoad(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	p, fence := paths.New[driver.Fenced](server), NewFence(dial(t, server.Addr()), "fence/")
	ctx, cancel := context.WithTimeout(t.Context(), 9*patience) // for a busy machine
	defer cancel()
	var mu sync.Mutex
	inside := map[string]int{}
	within := func(most int, counted, forbidden string, random *rand.Rand) {
		mu.Lock()
		if inside[counted]++; inside[counted] > most || inside[forbidden] > 0 {
			t.Errorf("%d %s, %d %s", inside[counted], counted, inside[forbidden], forbidden)
		}
		mu.Unlock()
		time.Sleep(time.Duration(random.IntN(15)) * time.Millisecond)
		mu.Lock()
		inside[counted]--
		mu.Unlock()
	}
	var all sync.WaitGroup
	for i := range uint64(3) {
		s := newShapes(t, p, fence)
		for j := range uint64(2) {
			random := rand.New(rand.NewPCG(i, j))
			turns := []func() error{
				func() error {
					return s.shared.Read(ctx, "book", func(context.Context, *rwlock.ReadClaim) error {
						within(6, "readers", "writers", random)
						return nil
					})
				},
				func() error {
					return s.shared.Write(ctx, "book", func(context.Context, interlock.Claim) error {
						within(1, "writers", "readers", random)
						return nil
					})
				},
				func() error {
					return s.permits.Do(ctx, "seats", func(context.Context, *semaphore.Permit) error {
						within(2, "permits", "", random)
						return nil
					})
				},
				func() error {
					names := []string{"a", "b"}
					random.Shuffle(2, func(i, j int) { names[i], names[j] = names[j], names[i] })
					return s.locks.DoAll(ctx, names, func(context.Context, lock.Claims) error {
						within(1, "with all names", "", random)
						return nil
					})
				},
			}
			all.Go(func() {
				for range 24 {
					if err := turns[random.IntN(len(turns))](); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
}

// TestShapesOutliveTheirHolders: a writer that was cut off does not write while
// others read, and its process's permit is somebody else's.
func TestShapesOutliveTheirHolders(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	p, fence := paths.New[driver.Fenced](server), NewFence(dial(t, server.Addr()), "fence/")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dying, living := newShapes(t, p, fence), newShapes(t, p, fence)
	w, err := dying.shared.AcquireWrite(ctx, "book")
	if err != nil {
		t.Fatal(err)
	}
	dead, err := dying.permits.Acquire(ctx, "seats")
	if err != nil {
		t.Fatal(err)
	}
	kept, err := living.permits.Acquire(ctx, "seats")
	if err != nil {
		t.Fatal(err)
	}
	p.Crash(t, dying.d)
	err = living.shared.Read(ctx, "book", func(ctx context.Context, r *rwlock.ReadClaim) error {
		late := fence.Enter(ctx, driver.Raise{Resource: "book", Token: w.Token()})
		if !errors.Is(late, interlock.ErrStaleToken) || w.Valid() || !r.Valid() {
			t.Errorf("the late write: %v; writer valid %v, reader valid %v", late, w.Valid(), r.Valid())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	next, err := living.permits.Acquire(ctx, "seats")
	if err != nil {
		t.Fatal(err)
	}
	if next.Slot() != dead.Slot() || next.Claim().Token() <= dead.Claim().Token() || dead.Valid() {
		t.Errorf("slot %d with token %d after slot %d with %d", next.Slot(), next.Claim().Token(), dead.Slot(), dead.Claim().Token())
	}
	for _, p := range []*semaphore.Permit{next, kept} {
		if err := p.Release(ctx); err != nil {
			t.Error(err)
		}
	}
}

// TestCostOfShapes counts every request of the client.
func TestCostOfShapes(t *testing.T) {
	t.Parallel()
	var count counter
	server := serverFor(t)
	d := open(t, dial(t, server.Addr(), count.on), &Options{TTL: time.Minute})
	readers, err := rwlock.New(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	permits, err := semaphore.New(d, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	type releaser interface{ Release(context.Context) error }
	for _, c := range []struct {
		what    string
		acquire func() (releaser, error)
		want    int64
	}{
		{"a read", func() (releaser, error) { return readers.AcquireRead(t.Context(), "book") }, 4},
		{"a write", func() (releaser, error) { return readers.AcquireWrite(t.Context(), "book") }, 3},
		{"a permit", func() (releaser, error) { return permits.Acquire(t.Context(), "seats") }, 4},
		{"three names", func() (releaser, error) { return locks.AcquireAll(t.Context(), []string{"c", "b", "a"}) }, 4},
	} {
		before := count.n.Load()
		held, err := c.acquire()
		if err != nil {
			t.Fatal(err)
		}
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := count.n.Load() - before; got != c.want {
			t.Errorf("%s: %d requests, not %d", c.what, got, c.want)
		}
	}
}

// TestDowngradeAndWeightedPermits over two processes.
func TestDowngradeAndWeightedPermits(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	p, fence := paths.New[driver.Fenced](server), NewFence(dial(t, server.Addr()), "fence/")
	here, there := newShapes(t, p, fence), newShapes(t, p, fence)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	check := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Fatalf("%s: %v, want %v", what, err, want)
		}
	}
	w, err := here.shared.AcquireWrite(ctx, "n")
	check("write", err, nil)
	r, err := w.Downgrade(ctx)
	check("downgrade", err, nil)
	_, err = there.shared.TryWrite(ctx, "n")
	check("a writer beside one that reads now", err, interlock.ErrHeld)
	other, err := there.shared.AcquireRead(ctx, "n")
	check("another reader", err, nil)
	check("release", errors.Join(other.Release(ctx), r.Release(ctx)), nil)

	one, err := here.permits.AcquireN(ctx, "n", 1)
	check("one permit", err, nil)
	_, err = there.permits.TryAcquireN(ctx, "n", 2)
	check("both permits while one is out", err, interlock.ErrHeld)
	check("release", one.Release(ctx), nil)
	both, err := there.permits.AcquireN(ctx, "n", 2)
	check("both permits", err, nil)
	check("release", both.Release(ctx), nil)
}
