package rwlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/rwlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// world is a guarded store and its readers and writers, some of which pause at the worst moment and
// continue after their claim has ended.
type world struct {
	*bench
	store  *fence.Store
	sealed bool

	mu      sync.Mutex
	writers int // with valid claims
	written int
	late    int // writes after the end of the claim that the guard accepted
	reads   int // with a valid claim
}

func newWorld(b *bench, sealed bool) *world {
	return &world{bench: b, store: fence.NewStore(b.space.Fence()), sealed: sealed}
}

// process opens a process; dies stops its renewals.
func (w *world) process() (l *rwlock.Lock, dies func(), end func()) {
	d := w.open()
	o := &rwlock.Options{}
	if w.sealed {
		o.Seal = func(ctx context.Context, name string, door interlock.Claim) error {
			return w.store.Enter(ctx, door, name)
		}
	}
	l, err := rwlock.New(d, o)
	testbed.OK(w, err)
	dies = func() { _ = d.Close(context.Background()) }
	return l, dies, func() { _ = l.Close(context.Background()); dies() }
}

func (w *world) value() string {
	v, _ := w.space.Fence().Get("x")
	return string(v)
}

// write makes one guarded write of a new value. Like the last request of a paused holder, it does
// not check the claim.
func (w *world) write(ctx context.Context, c interlock.Claim) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.space.Fence().Enter(ctx, driver.Raise{Resource: name, Token: c.Token(), Source: c.Owner()},
		driver.Write{Key: "x", Value: fmt.Append(nil, w.written)})
	if err == nil {
		w.written++
	}
	if err == nil && !c.Valid() {
		w.late++
	}
	return err
}

// readOnce reads twice with time in between. The reads count if its claim is valid after the last
// one.
func (w *world) readOnce(l *rwlock.Lock, random *rand.Rand, dies func()) {
	r, err := l.AcquireRead(w.Context(), name)
	if err != nil {
		w.Error(err)
		return
	}
	first := w.value()
	if dies != nil {
		dies()
	}
	time.Sleep(time.Duration(random.Int64N(int64(2 * ttl))))
	second := w.value()
	w.mu.Lock()
	if r.Valid() {
		w.reads++
		if first != second || w.writers != 0 {
			w.Errorf("a reader saw %s, then %s; %d write", first, second, w.writers)
		}
	}
	w.mu.Unlock()
	_ = r.Release(w.Context())
}

func (w *world) writeOnce(l *rwlock.Lock, random *rand.Rand, dies func()) {
	c, err := l.AcquireWrite(w.Context(), name)
	if err != nil {
		w.Error(err)
		return
	}
	w.count(1)
	stop := context.AfterFunc(c.Context(), func() { w.count(-1) })
	_ = w.write(w.Context(), c)
	if dies != nil {
		dies()
		time.Sleep(time.Duration(random.Int64N(int64(3 * ttl))))
	}
	err = w.write(w.Context(), c)
	if err != nil && (c.Valid() || !errors.Is(err, interlock.ErrStaleToken)) {
		w.Errorf("valid %v: %v", c.Valid(), err)
	}
	if stop() {
		w.count(-1)
	}
	_ = c.Release(w.Context())
}

func (w *world) count(by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writers += by
	if w.writers > 1 {
		w.Errorf("%d write", w.writers)
	}
}

// TestReadersNeverOverlapAGuardedWrite runs random schedules, in which one turn in four stops
// its renewals.
func TestReadersNeverOverlapAGuardedWrite(t *testing.T) {
	for seed := range uint64(15) {
		inBubble(t, func(b *bench) {
			w := newWorld(b, true)
			var all sync.WaitGroup
			for process := range uint64(6) {
				random := rand.New(rand.NewPCG(seed, process))
				all.Go(func() {
					for range 12 {
						w.turn(random)
					}
				})
			}
			all.Wait()
			if w.reads < 10 || w.written < 10 {
				b.Errorf("only %d reads and %d writes", w.reads, w.written)
			}
			time.Sleep(2 * ttl) // until the claims of stopped processes expire
			b.mustBeEmpty()
		})
	}
}

func (w *world) turn(random *rand.Rand) {
	l, dies, end := w.process()
	defer end()
	if random.IntN(4) != 0 {
		dies = nil
	}
	for range 1 + random.IntN(2) {
		time.Sleep(time.Duration(random.Int64N(int64(ttl))))
		if random.IntN(3) == 0 {
			w.writeOnce(l, random, dies)
		} else {
			w.readOnce(l, random, dies)
		}
		if dies != nil {
			return
		}
	}
}

// stoppedWriter runs a writer whose claim has ended, and a later reader.
func stoppedWriter(w *world) (first, second string, late error) {
	l, dies, end := w.process()
	defer end()
	c, err := l.AcquireWrite(w.Context(), name)
	testbed.OK(w, err)
	_ = w.write(w.Context(), c)
	dies()
	reader, _, endReader := w.process()
	defer endReader()
	err = reader.Read(w.Context(), name, func(ctx context.Context, r *rwlock.ReadClaim) error {
		first = w.value()
		late = w.write(w.Context(), c)
		second = w.value()
		return nil
	})
	testbed.OK(w, err)
	return first, second, late
}

func TestSealKeepsAStoppedWriterOut(t *testing.T) {
	inBubble(t, func(b *bench) {
		first, second, late := stoppedWriter(newWorld(b, true))
		if !errors.Is(late, interlock.ErrStaleToken) || first != second {
			b.Fatalf("the late write: %v; the reader saw %s, then %s", late, first, second)
		}
	})
}

// TestWithoutSealAStoppedWriterWritesWhileOthersRead shows what Seal prevents.
func TestWithoutSealAStoppedWriterWritesWhileOthersRead(t *testing.T) {
	inBubble(t, func(b *bench) {
		first, second, late := stoppedWriter(newWorld(b, false))
		if late != nil || first == second {
			b.Fatalf("the late write: %v; the reader saw %s, then %s: promise more", late, first, second)
		}
	})
}

// TestDowngradeKeepsAStoppedWriterOut: also if the writer that becomes a reader has written nothing.
func TestDowngradeKeepsAStoppedWriterOut(t *testing.T) {
	inBubble(t, func(b *bench) {
		w := newWorld(b, true)
		stopped, dies, end := w.process()
		defer end()
		c, err := stopped.AcquireWrite(w.Context(), name)
		testbed.OK(w, err)
		dies()
		l, _, endWriter := w.process()
		defer endWriter()
		next, err := l.AcquireWrite(w.Context(), name)
		testbed.OK(w, err)
		r, err := next.Downgrade(w.Context())
		testbed.OK(w, err)
		if late := w.write(w.Context(), c); !errors.Is(late, interlock.ErrStaleToken) || !r.Valid() {
			b.Errorf("a write of a former writer, while a reader is valid (%v): %v", r.Valid(), late)
		}
		testbed.OK(w, r.Release(w.Context()))
	})
}

func TestAFailingSealReadsNothing(t *testing.T) {
	inBubble(t, func(b *bench) {
		boom := errors.New("boom")
		panics := false
		l, _ := b.process(&rwlock.Options{Seal: func(context.Context, string, interlock.Claim) error {
			if panics {
				panic(boom)
			}
			return boom
		}})
		_, err := l.AcquireRead(b.Context(), name)
		if !errors.Is(err, boom) || len(b.residue()) != 0 {
			b.Fatalf("got %v, left %+v", err, b.residue())
		}
		panics = true
		defer func() {
			if recover() != boom || len(b.residue()) != 0 {
				b.Fatalf("after a panic %+v are left", b.residue())
			}
		}()
		_, _ = l.AcquireRead(b.Context(), name)
	})
}
