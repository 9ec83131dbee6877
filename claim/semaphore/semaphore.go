// Package semaphore gives a name to at most N holders at a time. It cannot promise that only N
// act: a holder that was paused continues after its permit has passed to another. Each permit
// has a slot, and a token that orders the holders of that slot. A guard with a mark per slot
// (Permit.Resource) rejects former holders.
//
//	permits, err := semaphore.Open(ctx, "redis://127.0.0.1:6379", 3, nil) // with import _ ".../driver/redis"
//	...
//	err = permits.Do(ctx, "reports", func(ctx context.Context, p *semaphore.Permit) error {
//		return store.Enter(ctx, p.Claim(), p.Resource(), changes...)
//	})
//
// Slots are fenced locks. A contender first acquires one more fenced lock, the door, and
// then a free slot. If no slot is free, it keeps the door until one is. All others queue for
// the door in the order of the driver, so only one contender watches the slots.
//
// A permit costs four requests: door and slot, acquired and released. Each slot that turns
// out to be taken costs one more, and a contender that waits lists all slots. A holder that
// crashes keeps its slot until its lease expires.
//
// Without Options.Values the backend does not store the number of permits, and all processes
// must use the same. A process with a smaller number than others gets ErrSize if all its
// slots are taken and slots beyond them are in use.
package semaphore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/join"
)

// MaxPermits is the maximum number of permits of a name.
const MaxPermits = 1000

// ErrSize means that slots beyond the last one of this semaphore are in use, so other processes
// use a larger number of permits. Or a call requests more permits at once than exist.
var ErrSize = errors.New("the number of permits does not match")

// Options configure a [Semaphore]; nil and the zero value are valid.
type Options struct {
	// Lock configures the locks behind the semaphore; nil means the defaults. Wait bounds a
	// whole call. Reentrant is ignored. Hooks report the locks by their own names: NAME#door is the door, NAME#s#0
	// the first slot. MaxHold bounds a permit, and the time for which a contender holds the
	// door; after that it queues again.
	Lock *lock.Options
	// Values stores the number of permits of each name in the backend, where [Semaphore.Resize]
	// changes it. A name that was never resized has the number passed to New. It costs one more
	// request per call. All processes that use a name must have the same Values. Nil means that
	// the number is the one passed to New.
	Values driver.Values
}

// Semaphore is one namespace of permits. It is safe for concurrent use.
type Semaphore struct {
	locks   *lock.Fenced
	backend *backend.Backend // nil if the driver is the caller's
	view    lock.View
	driver  failure.Driver
	values  driver.Values // nil: size is that of every name
	size    int
	wait    time.Duration
}

// Open connects to the lock service at a URL, as lock.Open does, and returns its semaphores
// with the given number of permits per name. See [New] and [Semaphore.Close].
func Open(ctx context.Context, url string, permits int, o *Options) (*Semaphore, error) {
	s, b, err := backend.Build(ctx, url, func(_ *backend.Backend, d driver.Fenced) (*Semaphore, error) { return New(d, permits, o) })
	if err != nil {
		return nil, err
	}
	s.backend = b
	return s, nil
}

// New returns semaphores on d with the given number of permits per name, 1 to [MaxPermits]. If
// d does not implement driver.Inspector and driver.Watcher, the error is an
// [*interlock.UnmetError]. It does not own d: close the semaphore first, then d.
func New(d driver.Fenced, permits int, o *Options) (*Semaphore, error) {
	if permits < 1 || permits > MaxPermits {
		return nil, failure.Bug("make semaphore", "", "%d permits are asked for, 1 to %d are possible", permits, MaxPermits)
	}
	view, err := lock.ViewOf(d)
	if err != nil {
		return nil, err
	}
	options := *cmp.Or(o, &Options{})
	inner := *cmp.Or(options.Lock, &lock.Options{})
	s := &Semaphore{view: view, values: options.Values, driver: failure.Driver(d.Guarantees().Driver), size: permits, wait: inner.Wait}
	inner.Reentrant = false // each permit has a slot of its own
	if s.wait > 0 {
		inner.Wait = 0
	}
	s.locks, err = lock.NewFenced(d, &inner)
	return s, err
}

// Close rejects further calls and ends waiting ones with interlock.ErrClosed. It blocks until
// their requests in the backend are withdrawn, or until ctx ends. Held permits stay held until
// they are released. After [Open], Close also disconnects: permits that are still held expire
// by their leases.
func (s *Semaphore) Close(ctx context.Context) error {
	err := s.locks.Close(ctx)
	return errors.Join(err, s.backend.Close(ctx))
}

// names are the names of the locks behind one name. No escaped name contains #, so the prefix
// slots belongs to this name only.
type names struct{ name, door, slots string }

func (s *Semaphore) names(name string) (names, error) {
	escaped := strings.NewReplacer("%", "%25", "#", "%23").Replace(name)
	n := names{name: name, door: escaped + "#door", slots: escaped + "#s#"}
	if most := driver.MaxName - len("#s#size"); name == "" || len(escaped) > most {
		return n, fmt.Errorf("%w: it has %d bytes (escaped), 1 to %d are allowed", interlock.ErrName, len(escaped), most)
	}
	return n, nil
}

func (n names) slot(i int) string { return n.slots + strconv.Itoa(i) }

// index returns the slot of a lock.
func (n names) index(lock string) (int, bool) {
	text, ok := strings.CutPrefix(lock, n.slots)
	i, err := strconv.Atoi(text)
	return i, ok && err == nil && n.slot(i) == lock
}

func (s *Semaphore) fail(ctx context.Context, name string, err error) error {
	return s.driver.OfPart(ctx, "acquire a permit of", name, err)
}

// anyOrder lists all slots from a random start: if all contenders began with the first slot,
// they would all find the same slots taken.
func (s *Semaphore) anyOrder(size int) []int {
	first := rand.IntN(size)
	slots := make([]int, size)
	for i := range slots {
		slots[i] = (first + i) % size
	}
	return slots
}

// sizeLock returns the name of the lock for changes of the number of permits; its token
// orders the changes. Its name has the prefix of the slots, so contenders that watch the
// slots see the change.
func (n names) sizeLock() string { return n.slots + "size" }

// Resize sets the number of permits of name, 1 to [MaxPermits], for all processes. A waiter
// sees a larger number at once. With a smaller number, permits beyond it stay held until they
// are released; until then as many holders as before can act. It needs [Options].Values, and
// waits for concurrent changes as [lock.Fenced.Acquire] does.
func (s *Semaphore) Resize(ctx context.Context, name string, permits int) error {
	n, err := s.names(name)
	switch {
	case s.values == nil:
		err = s.bug(name, "the semaphore has no Values to keep its size in")
	case permits < 1 || permits > MaxPermits:
		err = s.bug(name, "%d permits are asked for, 1 to %d are possible", permits, MaxPermits)
	}
	if err != nil {
		return s.fail(ctx, name, err)
	}
	c, err := s.locks.Acquire(ctx, n.sizeLock())
	if err != nil {
		return s.fail(ctx, name, err)
	}
	inside, stop := join.Context(ctx, c.Context())
	defer stop()
	err = s.values.Put(inside, n.sizeLock(), driver.Value{
		Token: c.Token(), Source: c.Owner(), Data: strconv.AppendInt(nil, int64(permits), 10)})
	return errors.Join(err, c.Release(ctx)) // waiters look again when it is free
}

func (s *Semaphore) bug(name, format string, args ...any) error {
	return s.driver.New("resize", name, interlock.Bug, fmt.Errorf(format, args...))
}

// Size returns the number of permits of name.
func (s *Semaphore) Size(ctx context.Context, name string) (int, error) {
	n, err := s.names(name)
	if err != nil {
		return 0, s.fail(ctx, name, err)
	}
	return s.sizeOf(ctx, n)
}

// room returns the number of slots, or an error if fewer than wanted exist.
func (s *Semaphore) room(ctx context.Context, n names, wanted int) (size int, err error) {
	size, err = s.sizeOf(ctx, n)
	if err == nil && wanted > size {
		err = s.driver.New("count permits of", n.name, interlock.Definite, fmt.Errorf("%w: %d permits at once; the name has %d", ErrSize, wanted, size))
	}
	return size, err
}

func (s *Semaphore) sizeOf(ctx context.Context, n names) (int, error) {
	if s.values == nil {
		return s.size, nil
	}
	v, err := s.values.Get(ctx, n.sizeLock())
	if err != nil || v.Token == 0 {
		return s.size, err
	}
	size, err := driver.ParseInt(string(v.Data))
	if err != nil || size < 1 || size > MaxPermits {
		return 0, s.driver.New("read size of", n.name, interlock.Definite, fmt.Errorf("%.40q is not a number of permits", v.Data))
	}
	return int(size), nil
}
