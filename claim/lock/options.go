package lock

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// Defaults of [Options].
const (
	DefaultHandovers      = 64
	DefaultTurn           = 20 * time.Millisecond
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
	// Turn is how long after the backend's grant the lock is still passed on inside the
	// process, so that many long hand-overs do not delay other processes. 0 means
	// [DefaultTurn], negative means no limit.
	Turn time.Duration
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
	// the process; 0 means a quarter of the time that the backend granted first.
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
	// lock that is passed on inside the process starts again.
	// Hooks.HeldLong is called at three quarters of it.
	MaxHold time.Duration
	// Reentrant lets a call in a context that descends from a claim on the same name
	// share that claim, instead of failing with interlock.ErrReentered: it has the
	// same token and context, and giving it up is left to the one who acquired it
	// first. Calls in other contexts wait; DoAll and AcquireAll refuse as before.
	Reentrant bool
	// Values keeps what holders say of themselves ([Claim.Describe]) and requests to
	// release ([Fenced.RequestRelease]). Everybody who uses that must have the same; names have
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
	r.Turn = max(0, cmp.Or(r.Turn, DefaultTurn))
	if r.NoRenewal {
		r.Handovers = -1
	}
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

// ownLease is what the driver promises of claims with the lease that o asks for. It
// fails if they cannot have that.
func (o *Options) ownLease(g interlock.Guarantees) (interlock.Guarantees, error) {
	if o == nil || o.TTL == 0 && o.RenewEvery == 0 && !o.NoRenewal {
		return g, nil
	}
	ttl := cmp.Or(o.TTL, g.TTL)
	unmet := func(format string, args ...any) (interlock.Guarantees, error) {
		return g, &interlock.UnmetError{Driver: g.Driver, Unmet: []string{fmt.Sprintf(format, args...)}}
	}
	switch {
	case g.MaxTTL == 0:
		return unmet("TTL, RenewEvery and NoRenewal need claims with a lease of their own, these share that of the driver (%v): open a driver with another TTL", g.TTL)
	case ttl < g.MinTTL || ttl > g.MaxTTL:
		return unmet("a TTL of %v is required, %v to %v are possible", ttl, g.MinTTL, g.MaxTTL)
	case o.RenewEvery < 0 || o.RenewEvery > ttl/2 || o.RenewEvery > 0 && o.NoRenewal:
		return g, &interlock.Error{Op: "make lock", Kind: interlock.Bug,
			Err: fmt.Errorf("RenewEvery is %v: at most half of the TTL (%v) is possible, and 0 with NoRenewal", o.RenewEvery, ttl)}
	}
	if ttl > g.TTL || o.NoRenewal {
		g.Blind = max(g.Blind, ttl)
	}
	g.TTL = ttl
	return g, nil
}

// checkLockDelay refuses a delay that the driver's leases have no room for.
func (o Options) checkLockDelay(g interlock.Guarantees) error {
	unmet := func(format string, args ...any) error {
		return &interlock.UnmetError{Driver: g.Driver, Unmet: []string{fmt.Sprintf(format, args...)}}
	}
	most := g.TTL/2 - g.TTL/100
	switch {
	case o.LockDelay == 0:
		return nil
	case g.TTL <= 0 || g.Liveness == interlock.Connection || g.Liveness == interlock.LivenessUnstated:
		return unmet("LockDelay needs claims that live by time, these live by %s", g.Liveness)
	case o.LockDelay > most:
		return unmet("LockDelay is %v, at most %v leave room to renew a lease of %v", o.LockDelay, most, g.TTL)
	}
	return nil
}
