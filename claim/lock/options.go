package lock

import (
	"cmp"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/process"
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

// Options configure a lock; nil and the zero value are valid.
type Options struct {
	// Identity identifies this process to people in the backend's record of the holder, in at
	// most 200 bytes. Empty means host name and process id.
	Identity string
	// Wait limits how long Do and Acquire wait for the lock; 0 means until their context ends.
	// After that time they return [interlock.ErrHeld].
	Wait time.Duration
	// Require is checked at construction against the driver's guarantees.
	Require interlock.Requirements
	// Handovers is how often in a row goroutines of this process hand the lock over, before
	// other processes get their turn. 0 means [DefaultHandovers], negative means never. The
	// maximum is interlock.MaxSub.
	Handovers int
	// Turn is how long after the backend's grant the lock may still be handed over inside the
	// process. It limits the delay of other processes. 0 means [DefaultTurn], negative means no
	// limit.
	Turn time.Duration
	// TTL is how long a claim lives without renewal; 0 means the driver's TTL.
	// interlock.Guarantees.MinTTL and MaxTTL are the limits. A driver may refuse TTL,
	// RenewEvery and NoRenewal with an [*interlock.UnmetError]. This applies to drivers whose
	// claims share one lease (etcd, ZooKeeper, Postgres and MariaDB sessions) or have a fixed
	// one (Kubernetes, Redis quorum).
	TTL time.Duration
	// RenewEvery is the interval of background renewals, at most half of the TTL; 0 means a
	// third.
	RenewEvery time.Duration
	// NoRenewal ends claims after the TTL, counted from when the request was sent, unless the
	// holder calls Renew. Then nothing is sent in the background, only Renew detects a loss,
	// and claims are not handed over inside the process.
	NoRenewal bool
	// MinValidity is how long a claim must remain valid to be handed over inside the process. 0
	// means a quarter of the time that the backend first granted.
	MinValidity time.Duration
	// ReleaseTimeout limits a release including retries, whatever the caller's context; 0 means
	// [DefaultReleaseTimeout]. A release also ends when the claim would have expired.
	ReleaseTimeout time.Duration
	// Attempts is how many requests in a row may fail as Retryable or Uncertain before a call
	// returns the error. Between requests the call waits with capped exponential backoff and
	// jitter. For Do and Acquire, 0 means no limit: they retry until Wait or their context
	// ends. For TryAcquire, 0 means [DefaultAttempts] (5 s at most). Any other error ends a
	// call at once.
	Attempts int
	// LockDelay ends every claim this long before the backend can grant its name to another
	// owner, if no renewal is confirmed. Requests of a holder that crashed or was paused then
	// have that time to complete. It delays nothing after a release. It does not replace a
	// guard, because requests can take longer. The maximum is 49 % of the driver's TTL, because
	// renewals need the rest; a RenewEvery above a third of the TTL lowers it by the difference. If
	// the driver's claims do not expire by time, the error is an [*interlock.UnmetError]. 0 means none.
	LockDelay time.Duration
	// MaxHold ends every claim after this time, even if it is renewed; 0 means never. The cause
	// is an interlock.ErrExpired. The backend keeps the name until the claim is released, as Do
	// does when its function returns. At the latest, it frees the name when the lease would
	// have expired without renewals. A hand-over inside the process starts the time again.
	// Hooks.HeldLong is called at three quarters of MaxHold.
	MaxHold time.Duration
	// Reentrant lets a call share the claim on the same name from which its context descends,
	// instead of failing with interlock.ErrReentered. The shared claim has the same token and
	// context; only the caller that acquired it first releases it. Calls in other contexts
	// wait. DoAll and AcquireAll still fail with ErrReentered.
	Reentrant bool
	// Values stores the data of holders ([Claim.Describe]) and requests to release
	// ([Fenced.RequestRelease]). All processes that use these must have the same Values. Their
	// names are limited to ten bytes less. If Values is nil, these calls fail.
	Values driver.Values
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Lock
}

func (o *Options) resolve() (Options, error) {
	r := *cmp.Or(o, &Options{})
	if r.Identity == "" {
		r.Identity = process.Name()
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
	bad := func(format string, args ...any) error { return failure.Bug("make lock", "", format, args...) }
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

// ownLease returns the driver's guarantees for claims with the lease in o. It fails if the driver
// cannot provide that lease.
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
		return g, failure.Bug("make lock", "", "RenewEvery is %v: at most half of the TTL (%v) is possible, and 0 with NoRenewal", o.RenewEvery, ttl)
	}
	if ttl > g.TTL || o.NoRenewal {
		g.Blind = max(g.Blind, ttl)
	}
	g.TTL = ttl
	return g, nil
}

// checkLockDelay rejects a delay that is too long for the driver's leases.
func (o Options) checkLockDelay(g interlock.Guarantees) error {
	unmet := func(format string, args ...any) error {
		return &interlock.UnmetError{Driver: g.Driver, Unmet: []string{fmt.Sprintf(format, args...)}}
	}
	every := cmp.Or(o.RenewEvery, g.TTL/3)
	most := g.TTL/2 - g.TTL/100 - max(0, every-g.TTL/3)
	switch {
	case o.LockDelay == 0:
		return nil
	case g.TTL <= 0 || g.Liveness == interlock.Connection || g.Liveness == interlock.LivenessUnstated:
		return unmet("LockDelay needs claims that live by time, these live by %s", g.Liveness)
	case o.LockDelay > most:
		return unmet("LockDelay is %v, at most %v leave room to renew a lease of %v every %v", o.LockDelay, most, g.TTL, every)
	}
	return nil
}
