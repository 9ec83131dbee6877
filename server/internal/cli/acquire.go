package cli

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// patience is the wait before the first report.
const patience = 500 * time.Millisecond

// disconnect bounds the close of a connection, lostCloseTimeout that of one whose lock was
// lost.
const (
	disconnect       = 2 * time.Second
	lostCloseTimeout = 200 * time.Millisecond
)

// waitFlags are the flags of every command that acquires a lock.
type waitFlags struct {
	wait    time.Duration
	noWait  bool
	forever bool // neither was given
	ttl     time.Duration
	noRenew bool
}

const ttlUsage = "lease duration after this process dies, instead of ?ttl= of the URL; renewed after each third of it"

func (w *waitFlags) add(f *pflag.FlagSet) {
	f.DurationVar(&w.wait, "wait", 0, "wait at most this long for the lock, and for an unreachable backend; 0 does not wait (default: no limit, and --timeout)")
	f.BoolVar(&w.noWait, "no-wait", false, "do not wait at all")
	f.DurationVar(&w.ttl, "ttl", 30*time.Second, ttlUsage)
	f.BoolVar(&w.noRenew, "no-renew", false, "do not renew the lock; it is lost when --ttl is over")
}

func (w *waitFlags) check(f *pflag.FlagSet) error {
	switch {
	case w.noWait && f.Changed("wait") && w.wait != 0:
		return usage("--wait %v and --no-wait exclude each other", w.wait)
	case w.wait < 0:
		return usage("--wait %v is in the past; --no-wait does not wait", w.wait)
	case w.ttl <= 0:
		return usage("--ttl must be above 0, not %v", w.ttl)
	}
	w.forever = !w.noWait && !f.Changed("wait")
	w.noWait = w.noWait || !w.forever && w.wait == 0
	return nil
}

// resolveTTL replaces the default of --ttl by the setting ttl of the URL, if it has one. It rejects a
// TTL that the backend cannot grant, before any request.
func (a *app) resolveTTL(f *pflag.FlagSet, ttl *time.Duration) error {
	target, err := a.target()
	if err != nil {
		return err
	}
	if inURL, err := time.ParseDuration(target.Setting("ttl")); err == nil && !f.Changed("ttl") {
		*ttl = inURL
	}
	return ttlError(*ttl, target.CheckTTL(*ttl))
}

// ttlError adds the flag to an error about the TTL.
func ttlError(ttl time.Duration, err error) error {
	var impossible *backend.TTLError
	if errors.As(err, &impossible) {
		return usage("--ttl %v is impossible: %w", ttl, err)
	}
	return err
}

// checkName rejects a lock's name that no backend accepts, before any request; checkResource
// does the same for a guard's resource.
func checkName(name string) error { return checkLength("a lock's name", name) }

func checkResource(name string) error { return checkLength("a resource", name) }

func checkLength(what, name string) error {
	if name == "" || len(name) > driver.MaxName {
		return usage("%s has 1 to %d bytes, not %d", what, driver.MaxName, len(name))
	}
	return nil
}

// A grant is an acquired lock, with everything to close after it.
type grant struct {
	*lock.Claim
	app    *app
	target backend.Target
	waited time.Duration
	locks  *lock.Fenced
	driver *backend.Locks

	unreleased bool // the backend did not confirm the release
}

// acquire opens the backend and acquires the lock. ctx ends the wait. On an error it closes
// everything.
func (a *app) acquire(ctx context.Context, name string, w waitFlags) (*grant, error) {
	target, err := a.target()
	if err != nil {
		return nil, err
	}
	g := &grant{app: a, target: target}
	begun := time.Now()
	if g.driver, err = a.open(ctx, target, w.ttl, a.reconnects(w)); err != nil {
		return nil, err
	}
	w.wait = max(w.wait-time.Since(begun), min(w.wait, time.Second)) // the rest; a backend that was reached late gets a request, too
	if err := g.take(ctx, name, w); err != nil {
		g.close()
		return nil, a.explain(ctx, target, name, err)
	}
	return g, nil
}

// reconnects returns how long to retry an unreachable backend: as long as the wait for the
// lock, if that is bounded. Without --wait a stopped development server is not retried.
func (a *app) reconnects(w waitFlags) time.Duration {
	switch {
	case w.noWait:
		return 0
	case !w.forever:
		return w.wait
	case a.backendGiven():
		return a.timeout
	}
	if _, running := findDev(); running {
		return a.timeout
	}
	return 0
}

// reconnectPause is the pause between two attempts to reach a backend.
const reconnectPause = 200 * time.Millisecond

// open connects, and retries for a time while the backend is unreachable. Each attempt is
// bounded by --timeout, and by the rest of that time.
func (a *app) open(ctx context.Context, target backend.Target, ttl, until time.Duration) (*backend.Locks, error) {
	begun, told := time.Now(), false
	for {
		bound := a.timeout
		if until > 0 {
			bound = min(bound, max((until-time.Since(begun)).Round(time.Millisecond), time.Second)) // a short wait has time to connect, too
		}
		d, err := a.within(bound).openOnce(ctx, target, ttl)
		waited := time.Since(begun)
		if err == nil || codeOf(err) != exitUnreachable || waited+reconnectPause > until {
			return d, err
		}
		if waited > patience && !told {
			told = true
			a.say("%v; trying again", err)
		}
		_ = pause(ctx, reconnectPause) // the next attempt reports the end of ctx
	}
}

// pause waits for a time. It returns the cause of ctx if that ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// within returns a copy with another --timeout.
func (a *app) within(timeout time.Duration) *app {
	b := *a
	b.timeout = timeout
	return &b
}

func (a *app) openOnce(ctx context.Context, target backend.Target, ttl time.Duration) (*backend.Locks, error) {
	opening, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	d, err := target.Locks(opening, backend.Options{TTL: ttl, Prefix: a.prefix})
	if s := signalError(ctx); err != nil && s != nil {
		return nil, s
	}
	if err != nil {
		return nil, a.backendError(target, ttlError(ttl, err))
	}
	return d, nil
}

func (g *grant) take(ctx context.Context, name string, w waitFlags) (err error) {
	waitNotice := &waitNotice{app: g.app, inspector: g.driver, name: name}
	g.locks, err = lock.NewFenced(g.driver, &lock.Options{
		Wait:           w.wait,
		NoRenewal:      w.noRenew,
		Require:        interlock.Requirements{CrossProcess: true},
		ReleaseTimeout: min(g.app.timeout, w.ttl), // after the TTL the lock has expired
		Hooks:          &observe.Lock{Log: observe.Silent, Waiting: waitNotice.place, RequestFailed: g.app.reportRetry},
	})
	if err != nil {
		return w.refused(err)
	}
	begun := time.Now()
	if w.noWait {
		ctx, cancel := context.WithTimeout(ctx, g.app.timeout)
		defer cancel()
		g.Claim, err = g.locks.TryAcquire(ctx, name)
	} else {
		stop := waitNotice.start(ctx)
		g.Claim, err = g.locks.Acquire(ctx, name)
		stop()
	}
	g.waited = time.Since(begun)
	return err
}

// refused adds the flag to an error about a missing feature of the driver.
func (w waitFlags) refused(err error) error {
	var unmet *interlock.UnmetError
	if w.noRenew && errors.As(err, &unmet) {
		return usage("--no-renew is impossible: %w", err)
	}
	return err
}

// explain turns the error of a wait into one for the user.
func (a *app) explain(ctx context.Context, target backend.Target, name string, err error) error {
	if s := signalError(ctx); s != nil {
		return s
	}
	var held *interlock.HeldError
	switch {
	case errors.As(err, &held) && held.Owner != "":
		return fail(exitNotAcquired, "not acquired: %q is held by %s", name, held.Owner)
	case errors.Is(err, interlock.ErrHeld):
		return fail(exitNotAcquired, "not acquired: %q is held by another process", name)
	}
	return a.backendError(target, err)
}

// release releases the lock. It reports a failure: the lock then stays held until it expires.
func (g *grant) release() {
	left, begun := g.Remaining(), boottime.Now()
	if err := g.Claim.Release(context.Background()); err != nil {
		g.unreleased = true
		g.app.say("warning: %q could not be released and %s: %v", g.Name(), staysTaken(left-boottime.Now().Sub(begun)), err)
	}
}

// staysTaken rounds up, because our clock ends a lease before the backend's.
func staysTaken(left time.Duration) string {
	if left <= 0 {
		return "expires now"
	}
	return fmt.Sprintf("may stay taken for up to %v more", left.Truncate(time.Second)+time.Second)
}

// killMargin is slightly more than the longest rest of a claim when its command is killed.
const killMargin = 300 * time.Millisecond

// awaitEnd waits for the end of a claim that ends soon: a backend that could not renew it
// would not confirm its release either.
func (g *grant) awaitEnd() {
	if g.Remaining() > killMargin {
		return
	}
	_ = pause(g.Context(), 2*killMargin)
}

// close disconnects. If there is nothing to send, it waits only briefly for an answer. An
// unfinished close ends with the process: not every driver's Close can be interrupted.
func (g *grant) close() {
	patience := disconnect
	if g.over() {
		patience = lostCloseTimeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- g.disconnect(ctx) }()
	var err error
	select {
	case err = <-closed:
	case <-ctx.Done():
		err = fmt.Errorf("not done within %v", patience)
	}
	if err != nil && !g.over() {
		g.app.say("warning: disconnecting from %v: %v", g.target, err)
	}
}

// over reports whether the lock was lost, or its release not confirmed.
func (g *grant) over() bool {
	return g.unreleased || g.Claim != nil && !errors.Is(context.Cause(g.Context()), interlock.ErrReleased)
}

func (g *grant) disconnect(ctx context.Context) (err error) {
	if g.locks != nil {
		err = g.locks.Close(ctx)
	}
	return errors.Join(err, g.driver.Close(ctx))
}

// waitNotice reports a long wait once, with the holder of the lock.
type waitNotice struct {
	app       *app
	inspector driver.Inspector
	name      string
	ahead     atomic.Int64 // the backend's last count, plus one; 0 if it has sent none
}

func (n *waitNotice) place(w observe.LockWaiting) { n.ahead.Store(int64(w.Ahead) + 1) }

// outage is the number of failed requests in a row that is reported.
const outage = 2

// reportRetry reports a failed request, once in each outage.
func (a *app) reportRetry(e observe.LockRequestFailed) {
	if e.Failed == outage {
		a.say("%q: %v; trying again", e.Name, e.Err)
	}
}

// noticeTimeout bounds the wait for a notice that is being printed. A terminal whose output is
// stopped, or a full pipe, must not delay a command whose lock is held.
const noticeTimeout = 200 * time.Millisecond

// start starts the notice; stop cancels it, and waits for its end within noticeTimeout.
func (n *waitNotice) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	timer := time.NewTimer(patience)
	go func() {
		defer close(gone)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
			n.tell(ctx)
		}
	}()
	return func() {
		cancel()
		select {
		case <-gone:
		case <-time.After(noticeTimeout):
		}
	}
}

func (n *waitNotice) tell(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, n.app.timeout)
	defer cancel()
	state, err := n.inspector.Lock(bounded, n.name)
	switch {
	case ctx.Err() != nil: // the wait is over
	case err != nil || state.Holder == nil:
		n.app.say("waiting for %q%s", n.name, n.position())
	default:
		n.app.say("waiting for %q, held by %s%s", n.name, describe(*state.Holder), n.position())
	}
}

// describe returns a holder on one line.
func describe(c driver.Contender) text {
	t := line("%s", c.Owner)
	if c.Token != 0 {
		t += line(" with token %d", c.Token)
	}
	if !c.Since.IsZero() {
		t += line(" since %s", c.Since.Local().Format(time.DateTime))
	}
	return t
}

func (n *waitNotice) position() string {
	switch ahead := n.ahead.Load() - 1; {
	case ahead < 0:
		return ""
	case ahead == 0:
		return "; next in line"
	default:
		return fmt.Sprintf("; %d ahead of us", ahead)
	}
}
