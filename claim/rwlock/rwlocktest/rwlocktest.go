// Package rwlocktest is the conformance suite of a lock system for read-write locks,
// semaphores, and locks of several names. It does not test the system's locks, which package
// drivertest does.
package rwlocktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/rwlock"
	"github.com/interlock-dev/interlock/claim/semaphore"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const (
	patience = 40 * time.Second // bounds each wait, on a slow machine
	name     = "prices"
)

// World is one lock system. Its functions are called one at a time.
type World struct {
	// TTL is the drivers' TTL.
	TTL time.Duration
	// Open opens the driver like another process. It closes it by t.Cleanup.
	Open func(t *testing.T) driver.Fenced
	// Crash disconnects d permanently, without closing it.
	Crash func(t *testing.T, d driver.Fenced)
	// Cut disconnects d until heal is called; nil skips the tests that need it.
	Cut func(d driver.Fenced) (heal func())
	// Slow skips further crashes, if a disconnected driver takes long to close.
	Slow bool
}

// Run runs the suite.
func Run(t *testing.T, w World) {
	b := &backend{World: w}
	for _, c := range []struct {
		name string
		test func(*testing.T, *backend)
		more bool // another test has the same kind of crash
	}{
		{"StoppedWriter", testStoppedWriter, false},
		{"ReadersAndWriters", testReadersAndWriters, false},
		{"DeadReader", testDeadReader, true},
		{"ReaderThatComesBack", testReaderThatComesBack, true},
		{"Permits", testPermits, false},
		{"DeadPermit", testDeadPermit, true},
		{"AllNames", testAllNames, false},
		{"Downgrade", testDowngrade, false},
		{"WeightedPermits", testWeightedPermits, false},
	} {
		if w.Slow && c.more {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, b)
		})
	}
}

// Costs checks how many requests, counted by count, each kind of claim and its release cost.
func Costs(t *testing.T, d driver.Fenced, count func() int64) {
	p, ctx := newProcess(t, d), bounded(t)
	for _, c := range []struct {
		what string
		do   func()
		want int64
	}{
		{"a read", func() { release(t, must(p.shared.AcquireRead(ctx, name))(t)) }, 4},
		{"a write", func() { release(t, must(p.shared.AcquireWrite(ctx, name))(t)) }, 3}, // one lists the readers
		{"a permit", func() { release(t, must(p.permits.Acquire(ctx, name))(t)) }, 4},
		{"three names", func() { release(t, must(p.locks.AcquireAll(ctx, []string{"c", "b", "a"}))(t)) }, 4},
	} {
		const rounds = 5
		before := count()
		for range rounds {
			c.do()
		}
		if got := count() - before; got != rounds*c.want {
			t.Errorf("%s: %d requests in %d rounds, want %d each", c.what, got, rounds, c.want)
		}
	}
}

// backend calls the functions of a World one at a time.
type backend struct {
	World
	mu sync.Mutex
}

func (b *backend) open(t *testing.T) driver.Fenced {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Open(t)
}

func (b *backend) crash(t *testing.T, d driver.Fenced) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Crash(t, d)
}

type releaser interface{ Release(context.Context) error }

// process has every kind of lock on one driver.
type process struct {
	d       driver.Fenced
	shared  *rwlock.Lock
	permits *semaphore.Semaphore
	locks   *lock.Fenced
	guard   *memory.Fence
}

const permits = 2

func newProcess(t *testing.T, d driver.Fenced) *process { return newGuarded(t, d, nil) }

// newGuarded returns a process whose readers seal guard, unless that is nil.
func newGuarded(t *testing.T, d driver.Fenced, guard *memory.Fence) *process {
	t.Helper()
	p := &process{d: d, guard: guard}
	o := &rwlock.Options{}
	if guard != nil {
		o.Seal = func(ctx context.Context, name string, door interlock.Claim) error {
			return guard.Enter(ctx, driver.Raise{Resource: name, Token: door.Token()})
		}
	}
	var err error
	p.shared, err = rwlock.New(d, o)
	check(t, err)
	p.permits, err = semaphore.New(d, permits, nil)
	check(t, err)
	p.locks, err = lock.NewFenced(d, nil)
	check(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for _, close := range []func(context.Context) error{p.shared.Close, p.permits.Close, p.locks.Close} {
			if err := close(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	return p
}

func (p *process) write(ctx context.Context, c interlock.Claim, value string) error {
	return p.guard.Enter(ctx, driver.Raise{Resource: c.Name(), Token: c.Token()}, driver.Write{Key: "x", Value: []byte(value)})
}

func (p *process) value() string {
	v, _ := p.guard.Get("x")
	return string(v)
}

func check(t *testing.T, err error) {
	t.Helper()
	testbed.OK(t, err)
}

// must returns a function that returns the result, or fails the test with err.
func must[V any](v V, err error) func(t *testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		check(t, err)
		return v
	}
}

func release(t *testing.T, c releaser) {
	t.Helper()
	check(t, c.Release(t.Context()))
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// atRandom returns how long work takes.
func atRandom(random *rand.Rand) time.Duration {
	return time.Duration(random.IntN(15)) * time.Millisecond
}

func testReadersAndWriters(t *testing.T, b *backend) {
	guard, ctx := memory.NewSpace().Fence(), bounded(t)
	var mu sync.Mutex
	var last interlock.Token
	reads, writing := 0, false
	write := func(p *process, random *rand.Rand, value string) error {
		return p.shared.Write(ctx, name, func(ctx context.Context, c interlock.Claim) error {
			mu.Lock()
			if writing || c.Token() <= last {
				t.Errorf("token %d after %d, another writer holds the lock: %v", c.Token(), last, writing)
			}
			writing, last = true, c.Token()
			mu.Unlock()
			err := p.write(ctx, c, value)
			time.Sleep(atRandom(random))
			mu.Lock()
			writing = false
			mu.Unlock()
			return errors.Join(err, p.write(ctx, c, value+"!"))
		})
	}
	read := func(p *process, random *rand.Rand, _ string) error {
		return p.shared.Read(ctx, name, func(ctx context.Context, r *rwlock.ReadClaim) error {
			first := p.value()
			time.Sleep(atRandom(random))
			second := p.value()
			mu.Lock()
			defer mu.Unlock()
			if r.Valid() && (first != second || writing) {
				t.Errorf("a reader saw %q, then %q; a writer holds the lock: %v", first, second, writing)
			}
			reads++
			return nil
		})
	}
	var all sync.WaitGroup
	for i := range uint64(3) {
		p := newGuarded(t, b.open(t), guard)
		for j := range uint64(2) {
			random := rand.New(rand.NewPCG(i, j))
			all.Go(func() {
				for n := range 8 {
					act := read
					if random.IntN(3) == 0 {
						act = write
					}
					if err := act(p, random, fmt.Sprint(i, j, n)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	if reads == 0 || last == 0 {
		t.Errorf("%d reads, last token %d", reads, last)
	}
}

// testStoppedWriter: the guard rejects a writer that is disconnected and continues, once a later
// reader has sealed it.
func testStoppedWriter(t *testing.T, b *backend) {
	guard, ctx := memory.NewSpace().Fence(), bounded(t)
	stopped, reader := newGuarded(t, b.open(t), guard), newGuarded(t, b.open(t), guard)
	w := must(stopped.shared.AcquireWrite(ctx, "stopped writer"))(t)
	check(t, stopped.write(ctx, w, "first"))
	b.crash(t, stopped.d)
	err := reader.shared.Read(ctx, "stopped writer", func(ctx context.Context, r *rwlock.ReadClaim) error {
		if w.Valid() {
			t.Error("the writer's claim is still valid")
		}
		if err := stopped.write(ctx, w, "late"); !errors.Is(err, interlock.ErrStaleToken) {
			t.Errorf("the late write: %v", err)
		}
		if got := reader.value(); got != "first" || !r.Valid() {
			t.Errorf("it reads %q, valid %v", got, r.Valid())
		}
		return nil
	})
	check(t, err)
}

func testDeadReader(t *testing.T, b *backend) {
	ctx := bounded(t)
	dying, writer := newProcess(t, b.open(t)), newProcess(t, b.open(t))
	r := must(dying.shared.AcquireRead(ctx, "dead reader"))(t)
	b.crash(t, dying.d)
	began := time.Now()
	w := must(writer.shared.AcquireWrite(ctx, "dead reader"))(t)
	if r.Valid() {
		t.Error("the reader's claim is valid beside a writer's")
	}
	if took := time.Since(began); took > 3*b.TTL { // Consul ends a session after twice its TTL
		t.Errorf("the writer waited %v for a lease of %v", took, b.TTL)
	}
	release(t, w)
}

// testReaderThatComesBack: a reader is disconnected for longer than its lease, then continues.
func testReaderThatComesBack(t *testing.T, b *backend) {
	if b.Cut == nil {
		t.Skip("its paths are not cut and healed")
	}
	guard, ctx := memory.NewSpace().Fence(), bounded(t)
	absent, writer := newGuarded(t, b.open(t), guard), newGuarded(t, b.open(t), guard)
	r := must(absent.shared.AcquireRead(ctx, "comes back"))(t)
	first := absent.value()
	b.mu.Lock()
	heal := b.Cut(absent.d)
	b.mu.Unlock()
	w := must(writer.shared.AcquireWrite(ctx, "comes back"))(t)
	check(t, writer.write(ctx, w, "meanwhile"))
	heal()
	if second := absent.value(); r.Valid() || second == first {
		t.Errorf("it read %q, then %q, and its claim is valid: %v", first, second, r.Valid())
	}
	release(t, r)
	if !errors.Is(context.Cause(r.Context()), interlock.ErrExpired) && !errors.Is(context.Cause(r.Context()), interlock.ErrSessionEnded) {
		t.Errorf("cause %v", context.Cause(r.Context()))
	}
	if !w.Valid() {
		t.Error("the late release took the writer's claim")
	}
	release(t, w)
	release(t, must(absent.shared.AcquireRead(ctx, "comes back"))(t))
}

func testPermits(t *testing.T, b *backend) {
	ctx := bounded(t)
	var mu sync.Mutex
	out := map[int]interlock.Token{} // the holder's token, by slot
	last := map[int]interlock.Token{}
	var all sync.WaitGroup
	for i := range uint64(3) {
		p := newProcess(t, b.open(t))
		for j := range uint64(2) {
			random := rand.New(rand.NewPCG(i, j))
			all.Go(func() {
				for range 6 {
					err := p.permits.Do(ctx, "permits", func(ctx context.Context, permit *semaphore.Permit) error {
						slot, token := permit.Slot(), permit.Claim().Token()
						mu.Lock()
						if out[slot] != 0 || token <= last[slot] || slot >= permits {
							t.Errorf("token %d of slot %d after %d, held by %d", token, slot, last[slot], out[slot])
						}
						out[slot], last[slot] = token, token
						mu.Unlock()
						time.Sleep(atRandom(random))
						mu.Lock()
						defer mu.Unlock()
						delete(out, slot)
						return nil
					})
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	if len(last) != permits {
		t.Errorf("%d slots were used", len(last))
	}
}

func testDeadPermit(t *testing.T, b *backend) {
	ctx := bounded(t)
	dying, living := newProcess(t, b.open(t)), newProcess(t, b.open(t))
	dead := must(dying.permits.Acquire(ctx, "dead permit"))(t)
	kept := must(living.permits.Acquire(ctx, "dead permit"))(t)
	b.crash(t, dying.d)
	began := time.Now()
	next := must(living.permits.Acquire(ctx, "dead permit"))(t)
	if dead.Valid() || next.Slot() != dead.Slot() || next.Claim().Token() <= dead.Claim().Token() {
		t.Errorf("slot %d with token %d after slot %d with %d, which is valid: %v", next.Slot(), next.Claim().Token(),
			dead.Slot(), dead.Claim().Token(), dead.Valid())
	}
	if took := time.Since(began); took > 3*b.TTL { // Consul ends a session after twice its TTL
		t.Errorf("it waited %v for a lease of %v", took, b.TTL)
	}
	release(t, next)
	release(t, kept)
}

func testAllNames(t *testing.T, b *backend) {
	ctx := bounded(t)
	names := []string{"all/a", "all/b", "all/c"}
	var mu sync.Mutex
	inside := map[string]bool{}
	var all sync.WaitGroup
	for i := range uint64(3) {
		p, random := newProcess(t, b.open(t)), rand.New(rand.NewPCG(i, i))
		all.Go(func() {
			for range 6 {
				mine := slices.Clone(names)
				random.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
				err := p.locks.DoAll(ctx, mine[:2], func(ctx context.Context, claims lock.Claims) error {
					mark := func(as bool) {
						mu.Lock()
						defer mu.Unlock()
						for _, c := range claims {
							if inside[c.Name()] == as {
								t.Errorf("%q has two holders", c.Name())
							}
							inside[c.Name()] = as
						}
					}
					mark(true)
					time.Sleep(atRandom(random))
					mark(false)
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// testDowngrade: after a downgrade others can read, and none can write.
func testDowngrade(t *testing.T, b *backend) {
	here, there := newProcess(t, b.open(t)), newProcess(t, b.open(t))
	ctx := bounded(t)
	w := must(here.shared.AcquireWrite(ctx, "downgrade"))(t)
	r := must(w.Downgrade(ctx))(t)
	if w.Valid() || !r.Valid() {
		t.Errorf("the write claim is valid: %v, the read claim: %v", w.Valid(), r.Valid())
	}
	if _, err := there.shared.TryWrite(ctx, "downgrade"); !errors.Is(err, interlock.ErrHeld) {
		t.Errorf("another write claim: %v", err)
	}
	release(t, must(there.shared.AcquireRead(ctx, "downgrade"))(t))
	release(t, r)
	release(t, must(there.shared.AcquireWrite(ctx, "downgrade"))(t))
}

// testWeightedPermits: an acquire gets all its permits at once, or none.
func testWeightedPermits(t *testing.T, b *backend) {
	here, there := newProcess(t, b.open(t)), newProcess(t, b.open(t))
	ctx := bounded(t)
	all := must(here.permits.AcquireN(ctx, "weighted", permits))(t)
	if _, err := there.permits.TryAcquireN(ctx, "weighted", 1); !errors.Is(err, interlock.ErrHeld) {
		t.Errorf("one permit too many: %v", err)
	}
	release(t, all)
	one := must(here.permits.AcquireN(ctx, "weighted", 1))(t)
	if _, err := there.permits.TryAcquireN(ctx, "weighted", permits); !errors.Is(err, interlock.ErrHeld) {
		t.Errorf("all beside one: %v", err)
	}
	release(t, must(there.permits.AcquireN(ctx, "weighted", permits-1))(t)) // the refused call took none
	release(t, one)
}
