// Package rwlocktest is the conformance suite of a lock system for read-write locks,
// semaphores, and locks of several names. It does not test the system's locks, which package
// drivertest does, nor what holds on every such system: the packages' own tests do, in memory.
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

// World is one lock system. A drivertest.Backend is one.
type World interface {
	// Open opens the driver like another process. It closes it by t.Cleanup.
	Open(t *testing.T) (driver.Fenced, error)
	// Crash disconnects d permanently, without closing it.
	Crash(t *testing.T, d driver.Fenced)
}

// Run runs the suite.
func Run(t *testing.T, w World) {
	for name, test := range map[string]func(*testing.T, World){
		"StoppedWriter":     testStoppedWriter,
		"ReadersAndWriters": testReadersAndWriters,
		"Permits":           testPermits,
		"AllNames":          testAllNames,
	} {
		t.Run(name, func(t *testing.T) { test(t, w) })
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

func testReadersAndWriters(t *testing.T, w World) {
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
		p := newGuarded(t, must(w.Open(t))(t), guard)
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
func testStoppedWriter(t *testing.T, w World) {
	guard, ctx := memory.NewSpace().Fence(), bounded(t)
	stopped, reader := newGuarded(t, must(w.Open(t))(t), guard), newGuarded(t, must(w.Open(t))(t), guard)
	claim := must(stopped.shared.AcquireWrite(ctx, "stopped writer"))(t)
	check(t, stopped.write(ctx, claim, "first"))
	w.Crash(t, stopped.d)
	err := reader.shared.Read(ctx, "stopped writer", func(ctx context.Context, r *rwlock.ReadClaim) error {
		if claim.Valid() {
			t.Error("the writer's claim is still valid")
		}
		if err := stopped.write(ctx, claim, "late"); !errors.Is(err, interlock.ErrStaleToken) {
			t.Errorf("the late write: %v", err)
		}
		if got := reader.value(); got != "first" || !r.Valid() {
			t.Errorf("it reads %q, valid %v", got, r.Valid())
		}
		return nil
	})
	check(t, err)
}

func testPermits(t *testing.T, w World) {
	ctx := bounded(t)
	var mu sync.Mutex
	out := map[int]interlock.Token{} // the holder's token, by slot
	last := map[int]interlock.Token{}
	var all sync.WaitGroup
	for i := range uint64(3) {
		p := newProcess(t, must(w.Open(t))(t))
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

func testAllNames(t *testing.T, w World) {
	ctx := bounded(t)
	names := []string{"all/a", "all/b", "all/c"}
	var mu sync.Mutex
	inside := map[string]bool{}
	var all sync.WaitGroup
	for i := range uint64(3) {
		p, random := newProcess(t, must(w.Open(t))(t)), rand.New(rand.NewPCG(i, i))
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
