// Package lock lets one of many processes act on a name at a time. It does not
// promise that only one acts: a process can be stopped after it was told that
// it holds the lock and go on after it was taken away. What a lock of this
// package has is a token, and a guard (package guard/fence) that refuses older
// tokens is what protects the data.
//
//	locks, err := lock.NewFenced(d, nil) // d from driver/redis, driver/etcd, …
//	...
//	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
//		return fence.Tx(ctx, db, marks, c, "account/42", withdraw)
//	})
//
// Several names at once are taken by [Fenced.DoAll], in an order in which callers
// never wait for each other in a circle. Locks that readers share are in package
// claim/rwlock, at most so many at once in claim/semaphore.
//
// A lock that only saves duplicate work is made by [NewAdvisory]. Its claims
// have no token, so that they cannot be handed to a guard.
//
// However many goroutines want a name, the process takes one place in the
// backend's queue for it: goroutines queue here, in order, and pass the lock on
// among themselves a bounded number of times before other processes have their
// turn. DESIGN.md beside this file has the states.
package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/observe"
)

// Defaults of [Options].
const (
	DefaultHandovers      = 64
	DefaultReleaseTimeout = 5 * time.Second
	DefaultAttempts       = 6
)

const maxIdentity = 200

// Options of a lock; nil and the zero value work.
type Options struct {
	// Identity says who we are, for people, in the backend's record of the
	// holder: at most 200 bytes. Empty means host name and process id.
	Identity string
	// Wait bounds how long Do and Acquire wait for the lock; 0 means as long as
	// their context lasts. When it has passed they return [interlock.ErrHeld].
	Wait time.Duration
	// Require is checked at construction against what the driver promises.
	Require interlock.Requirements
	// Handovers is how many times in a row the lock is passed on inside the
	// process while other goroutines wait for it, before the backend's queue
	// has its turn. 0 means [DefaultHandovers], negative means never; at most
	// interlock.MaxSub.
	Handovers int
	// TTL is how long a claim lives without renewal; 0 means the driver's TTL. A
	// driver whose claims share one lease, such as one of sessions (etcd, ZooKeeper,
	// Postgres and MariaDB sessions), or that fixes it otherwise (Kubernetes, Redis
	// quorum), refuses TTL, RenewEvery and NoRenewal with an [*interlock.UnmetError]:
	// interlock.Guarantees.MinTTL and MaxTTL say what is allowed.
	TTL time.Duration
	// RenewEvery is how often claims are renewed in the background, at most half of
	// the TTL; 0 means every third of it.
	RenewEvery time.Duration
	// NoRenewal has claims end after the TTL, counted from when the request was sent,
	// unless the holder calls Renew. Nothing is sent in the background, a loss is
	// noticed by Renew only, and claims are not passed on inside the process.
	NoRenewal bool
	// MinValidity is how long a claim must be good for to be passed on inside
	// the process; 0 means a quarter of the TTL.
	MinValidity time.Duration
	// ReleaseTimeout bounds a release, retries included, whatever the caller's
	// context says; 0 means [DefaultReleaseTimeout]. A release that lasts until
	// the claim would have expired ends then.
	ReleaseTimeout time.Duration
	// Attempts is how many requests in a row may fail, with an error that is
	// Retryable or Uncertain, before a call gives up. Between them it waits with
	// capped exponential backoff and jitter. 0 means no limit for Do and Acquire,
	// which then retry until Wait or their context ends, and [DefaultAttempts] for
	// TryAcquire (5 s at most). Any other error ends a call at once.
	Attempts int
	// LockDelay ends every claim that much before the backend can give its name
	// away, if no renewal is confirmed: the last requests of a holder that
	// crashed or was stopped have so long to die out. It does not delay anything
	// after a release, and is no substitute for a guard, because requests can
	// take longer. At most 49 % of the driver's TTL, so that renewals have the
	// other half; a driver whose claims do not live by time is refused with an
	// [*interlock.UnmetError]. 0 means none.
	LockDelay time.Duration
	// MaxHold ends every claim after that long, however well it is renewed; 0
	// means never. The cause is an interlock.ErrExpired. The backend keeps the
	// name until the claim is released, as Do does when its function returns,
	// or at the latest until its lease would have run out without renewals. A
	// lock that is passed on inside the process starts anew.
	// Hooks.HeldLong is told at three quarters of it.
	MaxHold time.Duration
	// Reentrant lets a call in a context that descends from a claim on the same name
	// share that claim, instead of failing with interlock.ErrReentered: it has the
	// same token and context, and giving it up is left to the one who acquired it
	// first. Calls in other contexts wait; DoAll and AcquireAll refuse as before.
	Reentrant bool
	// Values keeps what holders say of themselves ([Claim.Describe]) and requests to
	// release ([Fenced.Ask]). Everybody who uses that must have the same; names have
	// ten bytes less then. nil means that these are refused.
	Values driver.Values
	// Hooks receive what happens; nil logs failures, see package observe.
	Hooks *observe.Lock
}

func (o *Options) resolve(g interlock.Guarantees) (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if r.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		r.Identity = fmt.Sprintf("%.150s:%d", host, os.Getpid())
	}
	r.Handovers = cmp.Or(r.Handovers, DefaultHandovers)
	if r.NoRenewal {
		r.Handovers = -1
	}
	r.MinValidity = cmp.Or(r.MinValidity, g.TTL/4)
	r.ReleaseTimeout = cmp.Or(r.ReleaseTimeout, DefaultReleaseTimeout)
	r.Hooks = r.Hooks.WithDefaults()
	return r, r.validate()
}

func (o Options) validate() error {
	bad := func(format string, args ...any) error {
		return &interlock.Error{Op: "make lock", Kind: interlock.Bug, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case len(o.Identity) > maxIdentity:
		return bad("Identity has %d bytes, at most %d are allowed", len(o.Identity), maxIdentity)
	case o.Wait < 0 || o.MinValidity < 0 || o.ReleaseTimeout < 0 || o.Attempts < 0:
		return bad("Wait, MinValidity, ReleaseTimeout and Attempts must not be negative")
	case o.LockDelay < 0 || o.MaxHold < 0:
		return bad("LockDelay and MaxHold must not be negative")
	case o.Handovers > interlock.MaxSub:
		return bad("Handovers is %d, at most %d fit a token", o.Handovers, interlock.MaxSub)
	}
	return nil
}

// Fenced is a lock whose claims carry tokens. It is safe for concurrent use.
type Fenced struct {
	l       *locker
	backend *backend.Backend // nil if the driver is the caller's
}

// Open connects to the lock service that a URL names, as redis://127.0.0.1:6379, and returns
// its locks. The driver of the URL's scheme has to be part of the program:
//
//	import _ "github.com/interlock-dev/interlock/driver/redis"
//
// The settings ttl and prefix of a URL are those of every driver: ?ttl=10s&prefix=app/.
// Without Options.Values, those of the backend are used if it keeps values. Open blocks until
// the backend has answered; ctx bounds that only. Errors are a *backend.URLError if the URL is
// wrong, an [*interlock.UnmetError] as of [NewFenced], or those of the backend.
func Open(ctx context.Context, url string, o *Options) (*Fenced, error) {
	f, b, err := backend.Build(ctx, url, func(b *backend.Backend, d driver.Fenced) (*Fenced, error) {
		var options Options
		if o != nil {
			options = *o
		}
		if options.Values == nil {
			var err error
			if options.Values, err = b.ValuesIfAny(ctx, ""); err != nil {
				return nil, err
			}
		}
		return NewFenced(d, &options)
	})
	if err != nil {
		return nil, err
	}
	f.backend = b
	return f, nil
}

// NewFenced makes locks of d. It fails with an [*interlock.UnmetError] if d does
// not promise what o.Require asks for. The lock does not own d: close the lock
// first, then d.
func NewFenced(d driver.Fenced, o *Options) (*Fenced, error) {
	l, err := newLocker(fencedBackend{d}, d.Guarantees(), o)
	if err != nil {
		return nil, err
	}
	l.batch, _ = d.(driver.Batch)
	return &Fenced{l: l}, nil
}

// Do waits for the lock on name, runs fn while it is held, and releases it when
// fn has returned or panicked, whatever became of ctx.
//
// The context that fn gets ends with ctx, or when the claim ends: its cause is
// then interlock.ErrExpired, ErrLost or ErrSessionEnded. If the claim ended
// before fn returned, Do's error says so, beside fn's own: fn ran, and only a
// guard knows how much of it counts. A release that could not be confirmed is
// told to Hooks, not returned: the lock expires by itself.
//
// If the lock was not acquired fn was not run, and the error is
// interlock.ErrHeld (Options.Wait has passed), that of ctx, ErrReentered (ctx
// holds name already), or that of the backend. While the backend cannot be
// reached Do retries, as Options.Attempts says; if Wait or ctx ends then, the
// error also says for how long it tried and why the last request failed.
func (f *Fenced) Do(ctx context.Context, name string, fn func(ctx context.Context, c interlock.Claim) error) error {
	return f.l.do(ctx, name, func(ctx context.Context, c claim) error { return fn(ctx, &Claim{c}) })
}

// Acquire waits for the lock on name until ctx ends. The claim does not end
// with ctx; it must be released. Errors are those of [Fenced.Do].
func (f *Fenced) Acquire(ctx context.Context, name string) (*Claim, error) {
	c, err := f.l.claim(ctx, name, false)
	if err != nil {
		return nil, err
	}
	return &Claim{c}, nil
}

// TryAcquire takes the lock on name if nobody holds or awaits it, and returns
// an [*interlock.HeldError] otherwise. It blocks only for the backend's answer.
func (f *Fenced) TryAcquire(ctx context.Context, name string) (*Claim, error) {
	c, err := f.l.claim(ctx, name, true)
	if err != nil {
		return nil, err
	}
	return &Claim{c}, nil
}

// Held finds the claim on name that ctx carries, because ctx descends from that
// of the claim. This is how a callee shares its caller's claim: asking for the
// same name again in such a context is refused with interlock.ErrReentered. The
// claim found is the caller's, who releases it.
func (f *Fenced) Held(ctx context.Context, name string) (*Claim, bool) {
	h := f.l.heldBy(ctx, name)
	if h == nil {
		return nil, false
	}
	return &Claim{claim{h: h}}, true
}

// Close refuses further calls, makes those that wait return interlock.ErrClosed,
// and waits until what they had in the backend is given up, or ctx ends. Claims
// that are held stay held until they are released. After [Open] it also disconnects: claims
// that are still held are left to expire.
func (f *Fenced) Close(ctx context.Context) error {
	err := f.l.close(ctx)
	return errors.Join(err, f.backend.Close(ctx))
}

// Advisory is a lock that saves duplicate work. Its claims have no token and
// protect nothing. It is safe for concurrent use.
type Advisory struct{ l *locker }

// NewAdvisory makes locks of d; see [NewFenced].
func NewAdvisory(d driver.Advisory, o *Options) (*Advisory, error) {
	l, err := newLocker(advisoryBackend{d}, d.Guarantees(), o)
	if err != nil {
		return nil, err
	}
	return &Advisory{l}, nil
}

// Do has the behaviour of [Fenced.Do].
func (a *Advisory) Do(ctx context.Context, name string, fn func(ctx context.Context, c *AdvisoryClaim) error) error {
	return a.l.do(ctx, name, func(ctx context.Context, c claim) error { return fn(ctx, &AdvisoryClaim{c}) })
}

// Acquire has the behaviour of [Fenced.Acquire].
func (a *Advisory) Acquire(ctx context.Context, name string) (*AdvisoryClaim, error) {
	c, err := a.l.claim(ctx, name, false)
	if err != nil {
		return nil, err
	}
	return &AdvisoryClaim{c}, nil
}

// TryAcquire has the behaviour of [Fenced.TryAcquire].
func (a *Advisory) TryAcquire(ctx context.Context, name string) (*AdvisoryClaim, error) {
	c, err := a.l.claim(ctx, name, true)
	if err != nil {
		return nil, err
	}
	return &AdvisoryClaim{c}, nil
}

// Held has the behaviour of [Fenced.Held].
func (a *Advisory) Held(ctx context.Context, name string) (*AdvisoryClaim, bool) {
	h := a.l.heldBy(ctx, name)
	if h == nil {
		return nil, false
	}
	return &AdvisoryClaim{claim{h: h}}, true
}

// Close has the behaviour of [Fenced.Close].
func (a *Advisory) Close(ctx context.Context) error { return a.l.close(ctx) }
