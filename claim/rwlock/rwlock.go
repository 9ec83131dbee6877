// Package rwlock gives a name to many readers or to one writer. It cannot promise that reads
// and writes never overlap: a process that was paused continues after its claim has ended. With
// Options.Seal it promises this: while a reader's claim is valid, no writer that writes through
// a guard changes the data that it reads. A reader whose claim is no longer valid discards what
// it read. A writer's claim has a token for the guard, a reader's has none.
//
//	locks, err := rwlock.Open(ctx, "redis://127.0.0.1:6379", nil) // with import _ ".../driver/redis"
//	...
//	err = locks.Read(ctx, "prices", func(ctx context.Context, r *rwlock.ReadClaim) error {
//		return show(ctx)
//	})
//	err = locks.Write(ctx, "prices", func(ctx context.Context, c interlock.Claim) error {
//		return store.Enter(ctx, c, "prices", changes...)
//	})
//
// Readers and writers queue for one fenced lock, the door, in the order of the driver. A
// reader takes a lock of its own while it holds the door, then releases the door. A writer
// keeps the door until the last reader has left and its own write has ended. So a reader
// waits behind a waiting writer, and a writer waits only for readers before it.
//
// A read costs four requests: two locks, acquired and released. A write costs two, and one
// listing of the readers (driver.Inspector.Locks, one request on most backends). A reader
// that crashes delays a writer until its lease expires. DESIGN.md explains why this is
// correct.
package rwlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Options configure a [Lock]; nil and the zero value are valid.
type Options struct {
	// Lock configures the locks behind this one; nil means the defaults. Wait bounds a whole
	// call. A writer's MaxHold starts when it has the door, because from then on it excludes
	// others. Hooks report the locks by their own names: NAME#rw is the door, NAME#r#… a
	// reader.
	Lock *lock.Options
	// Seal raises the mark of the guard to the token of door; fence.Store.Enter without writes
	// does that. A reader calls it while it holds the door, before it reads, and so does
	// [WriteClaim.Downgrade]. After it, an earlier writer that was paused can no longer write while
	// others read. Nil means that the guard rejects such a writer only once another writer has
	// entered. Seal must respect ctx, which ends with the door's claim.
	Seal func(ctx context.Context, name string, door interlock.Claim) error
}

// Lock is a namespace of read and write claims. It is safe for concurrent use.
type Lock struct {
	locks   *lock.Fenced
	backend *backend.Backend // nil if the driver is the caller's
	view    lock.View
	driver  failure.Driver
	seal    func(context.Context, string, interlock.Claim) error
	wait    time.Duration
}

// Open connects to the lock service at a URL, as lock.Open does, and returns its read-write
// locks; see [New] and [Lock.Close].
func Open(ctx context.Context, url string, o *Options) (*Lock, error) {
	l, b, err := backend.Build(ctx, url, func(_ *backend.Backend, d driver.Fenced) (*Lock, error) { return New(d, o) })
	if err != nil {
		return nil, err
	}
	l.backend = b
	return l, nil
}

// New returns read-write locks on d. If d does not implement driver.Inspector and
// driver.Watcher, the error is an [*interlock.UnmetError]. It does not own d: close the lock
// first, then d.
func New(d driver.Fenced, o *Options) (*Lock, error) {
	options := *cmp.Or(o, &Options{})
	inner := *cmp.Or(options.Lock, &lock.Options{})
	view, err := lock.ViewOf(d)
	if err != nil {
		return nil, err
	}
	l := &Lock{view: view, driver: failure.Driver(d.Guarantees().Driver), seal: options.Seal, wait: inner.Wait}
	if l.wait > 0 {
		inner.Wait = 0
	}
	l.locks, err = lock.NewFenced(d, &inner)
	return l, err
}

// Close rejects further calls and ends waiting ones with interlock.ErrClosed. It blocks until
// their requests in the backend are withdrawn, or until ctx ends. Held claims stay held until
// they are released. After [Open], Close also disconnects: claims that are still held expire by
// their leases.
func (l *Lock) Close(ctx context.Context) error {
	err := l.locks.Close(ctx)
	return errors.Join(err, l.backend.Close(ctx))
}

// names are the names of the locks behind one name. No escaped name contains #, so prefix
// belongs to this name only.
type names struct{ door, prefix string }

const idLength = 26

func (l *Lock) names(name string) (names, error) {
	escaped := strings.NewReplacer("%", "%25", "#", "%23").Replace(name)
	n := names{door: escaped + "#rw", prefix: escaped + "#r#"}
	if most := driver.MaxName - len("#r#") - idLength; name == "" || len(escaped) > most {
		return n, fmt.Errorf("%w: it has %d bytes (escaped), 1 to %d are allowed", interlock.ErrName, len(escaped), most)
	}
	return n, nil
}

// reader returns a new name of a lock for one reader.
func (n names) reader() string { return n.prefix + rand.Text()[:idLength] }

// heldKey is the context key of a held claim; with it a call detects that it would wait for
// itself.
type heldKey struct {
	lock *Lock
	name string
}

// holding returns a ctx that records that it holds c on name.
func (l *Lock) holding(ctx context.Context, name string, c *lock.Claim) context.Context {
	return context.WithValue(ctx, heldKey{l, name}, c)
}

// enter checks a call and bounds it by Options.Lock.Wait.
func (l *Lock) enter(ctx context.Context, name string) (names, context.Context, context.CancelFunc, error) {
	n, err := l.names(name)
	if c, _ := ctx.Value(heldKey{l, name}).(*lock.Claim); c != nil && c.Valid() {
		err = interlock.ErrReentered
	}
	if err != nil {
		return n, nil, nil, l.fail(ctx, name, err)
	}
	if l.wait == 0 {
		return n, ctx, func() {}, nil
	}
	bounded, cancel := context.WithTimeoutCause(ctx, l.wait, &interlock.HeldError{Name: name})
	return n, bounded, cancel, nil
}

func (l *Lock) fail(ctx context.Context, name string, err error) error {
	return l.driver.OfPart(ctx, "acquire", name, err)
}

// again retries attempts that failed because the claim on the door ended.
func again(ctx context.Context, attempt func() (*lock.Claim, error)) (c *lock.Claim, err error) {
	for {
		c, err = attempt()
		if err == nil || ctx.Err() != nil || !errors.Is(err, errTurnOver) {
			return c, err
		}
	}
}

// errTurnOver means that the claim on the door ended too early.
var errTurnOver = &interlock.Error{Op: "hold the door", Kind: interlock.Retryable,
	Err: errors.New("the claim on it ended too early")}
