package lock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// untokened is an advisory driver as a fenced one. The token of its grants is 0.
type untokened struct{ driver.Advisory }

func (u untokened) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	lease, err := u.Advisory.Acquire(ctx, r)
	return driver.Grant{Lease: lease}, err
}

// locker is the common part of Fenced and Advisory. It runs the machine: it serializes the events, and
// performs the I/O and the waits of their effects.
type locker struct {
	driver     driver.Fenced   // or an untokened one
	batch      driver.Batch    // nil if the driver acquires names one by one
	driverName failure.Driver  // for errors
	ctx        context.Context // ends at close
	cancel     context.CancelCauseFunc

	reportReleases bool // the default of Hooks.Ended ignores releases, which saves an uncontended pair the report

	mu sync.Mutex
	machine
	alarms  alarms
	joining context.Context // of a caller whose goroutine can run the attempt that it starts
	lent    *attempt        // for that goroutine
	running int             // goroutines of ours
	reports report.Queue    // of hooks, none of which is called with mu held
	random  []byte          // for owners
	idle    chan struct{}   // closed when closed and running is 0; nil before close
}

// The locker's parts of the machine's records.
type (
	caller struct {
		parent   context.Context // of the claim's context
		detached bool            // the claim's context has only the values of parent
		began    boottime.Instant
		answer   bool          // it has hold or err
		answered chan struct{} // closed then; nil until it is awaited
		hold     *hold
		err      error
	}
	contender struct {
		owner   string
		own     attempt      // the first one for this place alone
		attempt *attempt     // the last one
		grant   driver.Grant // zero until granted
	}
)

// read reads the clock and the lease of p's grant.
func (p *place) read() reading {
	now := boottime.Now()
	if lease, ok := p.grant.Lease.(interface {
		RemainingAt(boottime.Instant) time.Duration
	}); ok {
		return reading{now, lease.RemainingAt(now)}
	}
	return reading{now, p.grant.Lease.Remaining()}
}

// handle runs an event of the machine, and its effects.
func (l *locker) handle(event func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	event()
	l.runEffects()
}

// runEffects runs the effects of the last events. l.mu is held.
func (l *locker) runEffects() {
	for _, e := range l.effects {
		switch e.do {
		case ask:
			l.ask(e.gate, e.place)
		case stop:
			e.place.attempt.ctx.end(errNobodyWaits)
		case giveUp:
			l.running++
			go l.giveUpInBackground(e.gate.name, e.place.owner, e.err)
		case answer:
			if e.hold != nil {
				l.begin(e.hold, e.waiter.caller, e.after)
			}
			e.waiter.tell(e.hold, e.err)
		case end:
			l.end(e.hold, e.err)
		case wake:
			l.alarms.set(e.hold, e.after)
		case warn:
			l.warn(e.hold)
		}
	}
	clear(l.effects)
	l.effects = l.effects[:0]
}

func newLocker(d driver.Fenced, o *Options) (*locker, error) {
	g, err := o.ownLease(d.Guarantees())
	if err != nil {
		return nil, err
	}
	options, err := o.resolve()
	if err != nil {
		return nil, err
	}
	if err := g.Check(options.Require); err != nil {
		return nil, err
	}
	if err := options.checkLockDelay(g); err != nil {
		return nil, err
	}
	l := &locker{driver: d, driverName: failure.Driver(g.Driver), machine: machine{options: options, gates: make(map[string]*gate)}}
	l.reportReleases = o != nil && o.Hooks != nil && o.Hooks.Ended != nil
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.alarms.ring = l.ring
	return l, nil
}

func (l *locker) do(ctx context.Context, name string, fn func(context.Context, claim) error) (err error) {
	if c, ok := l.sharedBy(ctx, name); ok {
		if err = fn(ctx, c); !c.Valid() { // also if the caller that acquired it has released it
			err = errors.Join(err, l.driverName.New(opHold, name, interlock.Uncertain, c.h.cause()))
		}
		return err
	}
	h, err := l.acquire(l.options.Wait, caller{parent: ctx}, ctx, name, false)
	if err != nil {
		return err
	}
	defer func() {
		_ = claim{h: h}.Release(ctx) // Hooks.ReleaseFailed reports errors
		err = h.orEndedEarly(err)
	}()
	return fn(h.context(), claim{h: h})
}

// claim returns the claim of Acquire and TryAcquire.
func (l *locker) claim(ctx context.Context, name string, try bool) (claim, error) {
	if c, ok := l.sharedBy(ctx, name); ok {
		return c, nil
	}
	h, err := l.acquire(l.options.Wait, caller{parent: ctx, detached: true}, ctx, name, try)
	return claim{h: h}, err
}

// sharedBy returns the claim that a call in ctx shares, if Options.Reentrant allows it.
func (l *locker) sharedBy(ctx context.Context, name string) (claim, bool) {
	if !l.options.Reentrant || ctx.Err() != nil {
		return claim{}, false
	}
	h := l.heldBy(ctx, name)
	return claim{h: h, shared: true}, h != nil
}

// acquire waits until wait ends, on behalf of c, and no longer than bound; 0 means no bound.
func (l *locker) acquire(bound time.Duration, c caller, wait context.Context, name string, try bool) (*hold, error) {
	c.began = boottime.Sent()
	h, err := l.queue(bound, c, wait, name, try)
	if f := l.options.Hooks.Acquired; f != nil {
		e := observe.LockAcquired{Name: name, Wait: boottime.Sent().Sub(c.began), Err: err}
		if h != nil {
			e.Owner, e.Token = h.place.owner, h.token
		}
		report.Call(&l.reports, f, e)
	}
	return h, err
}

func (l *locker) queue(bound time.Duration, c caller, wait context.Context, name string, try bool) (*hold, error) {
	ctx := wait
	if bound > 0 {
		bounded, cancel := context.WithTimeout(wait, bound)
		defer cancel()
		ctx = bounded
	}
	w := &waiter{try: try, caller: c}
	g, lent, err := l.enter(ctx, wait, name, w)
	if err != nil {
		return nil, l.fail(name, err)
	}
	if lent != nil {
		if done, err := lent.serveLent(w, ctx, wait); done {
			return w.hold, err
		}
	}
	if l.awaitAnswer(ctx, w) {
		return w.hold, w.err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	answered := g.leave(w)
	l.runEffects()
	if answered {
		return w.hold, w.err
	}
	return nil, l.waitedTooLong(wait, g, w.began)
}

// enter adds w to the queue. If a request is needed, it returns the attempt, which the caller runs
// until ctx ends; ctx is wait with a bound.
func (l *locker) enter(ctx, wait context.Context, name string, w *waiter) (g *gate, lent *attempt, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.refuse(wait, name); err != nil {
		return nil, nil, err
	}
	l.joining = ctx
	g = l.join(name, w)
	l.runEffects()
	lent, l.joining, l.lent = l.lent, nil, nil
	return g, lent, nil
}

// tell answers w. l.mu is held.
func (w *waiter) tell(h *hold, err error) {
	w.answer, w.hold, w.err = true, h, err
	if w.answered != nil {
		close(w.answered)
	}
}

// awaitAnswer reports whether w has its answer; it waits until ctx ends.
func (l *locker) awaitAnswer(ctx context.Context, w *waiter) bool {
	l.mu.Lock()
	answer := w.answer
	if !answer && w.answered == nil {
		w.answered = make(chan struct{})
	}
	l.mu.Unlock()
	if answer {
		return true
	}
	select {
	case <-w.answered:
		return true
	case <-ctx.Done():
		return false
	}
}

// waitedTooLong returns the error of a wait that ended without an answer. A caller whose context ends
// with the cause ErrHeld gets the error of a passed Options.Wait.
func (l *locker) waitedTooLong(wait context.Context, g *gate, began boottime.Instant) error {
	cause := context.Cause(wait)
	var trouble error
	if g.place != nil && g.place.trouble != nil {
		trouble = fmt.Errorf("tried for %v, the last request failed: %w",
			boottime.Sent().Sub(began).Round(time.Millisecond), g.place.trouble)
	}
	switch {
	case cause != nil && !errors.Is(cause, interlock.ErrHeld) && trouble != nil:
		return l.driverName.New("acquire", g.name, ownCause(cause), fmt.Errorf("%w; %w", cause, trouble))
	case cause != nil && !errors.Is(cause, interlock.ErrHeld):
		return l.fail(g.name, cause)
	case trouble != nil:
		return l.driverName.New("acquire", g.name, interlock.Retryable, trouble)
	}
	return g.heldError()
}

// refuse returns why a call cannot join the queue.
func (l *locker) refuse(ctx context.Context, name string) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case l.closed:
		return interlock.ErrClosed
	case name == "" || len(name) > driver.MaxName:
		return fmt.Errorf("%w: it has %d bytes, 1 to %d are allowed", interlock.ErrName, len(name), driver.MaxName)
	}
	if h := l.find(ctx, name); h != nil && h.ended == nil {
		return interlock.ErrReentered
	}
	return nil
}

func (l *locker) fail(name string, err error) error {
	return l.driverName.New("acquire", name, ownCause(err), err)
}

// ownCause returns the kind of the caller's own cause: nothing was acquired.
func ownCause(err error) interlock.ErrorKind {
	if kind := interlock.Kind(err); kind != interlock.Uncertain {
		return kind
	}
	return interlock.Definite
}

func (l *locker) heldBy(ctx context.Context, name string) *hold {
	h := l.find(ctx, name)
	if h == nil || h.cause() != nil {
		return nil
	}
	return h
}

// giveUp releases the place of owner in the backend, until ctx ends, and then ends ctx. It reports a failure
// for by. If the backend has refused to create the place, nothing is left: if it refuses to release it, too,
// giveUp neither repeats the release nor reports it.
func (l *locker) giveUp(ctx *lazyContext, by any, name, owner string, refusal error) error {
	defer ctx.end(nil)
	for failed := 1; ; failed++ {
		err := l.driver.Release(ctx, name, owner)
		if err == nil || isRefusal(refusal) && isRefusal(err) {
			return err
		}
		if !worthRepeating(err) || !retries.Wait(ctx, failed) {
			report.Add(&l.reports, by, l.options.Hooks.ReleaseFailed, observe.LockReleaseFailed{Name: name, Owner: owner, Err: err})
			return err
		}
	}
}

// isRefusal reports whether err shows that nothing was done.
func isRefusal(err error) bool { return err != nil && interlock.Kind(err) != interlock.Uncertain }

func (l *locker) giveUpInBackground(name, owner string, refusal error) {
	ctx := lazyContext{parent: context.Background(), deadline: time.Now().Add(l.options.ReleaseTimeout)}
	_ = l.giveUp(&ctx, nil, name, owner, refusal) // Hooks.ReleaseFailed reports errors
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finish()
}

// finish records the end of a goroutine, an attempt or a call. l.mu is held.
func (l *locker) finish() {
	l.running--
	l.announceIdle()
}

func (l *locker) announceIdle() {
	if l.idle != nil && l.running == 0 {
		select {
		case <-l.idle:
		default:
			close(l.idle)
		}
	}
}

func (l *locker) close(ctx context.Context) error {
	l.cancel(interlock.ErrClosed)
	l.mu.Lock()
	if l.idle == nil {
		l.idle = make(chan struct{})
	}
	l.machine.close(func(name string) error { return l.fail(name, interlock.ErrClosed) })
	l.runEffects()
	for _, g := range l.gates {
		if g.place != nil && g.holder == nil {
			g.place.attempt.ctx.end(interlock.ErrClosed)
		}
	}
	l.announceIdle()
	idle := l.idle
	l.mu.Unlock()
	select {
	case <-idle: // an idle lock closes even if ctx has ended
	default:
		select {
		case <-idle:
		case <-ctx.Done():
			return l.driverName.New("close lock", "", interlock.Uncertain, context.Cause(ctx))
		}
	}
	if err := l.reports.Wait(ctx); err != nil {
		return l.driverName.New("close lock", "", interlock.Uncertain, fmt.Errorf("hooks have not returned: %w", err))
	}
	return nil
}

// newOwner returns a random owner. l.mu is held.
func (l *locker) newOwner() string {
	const base32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	const size, owners = 26, 16 // 130 bits, and for how many owners the system is asked at once
	if len(l.random) == 0 {
		l.random = make([]byte, size*owners)
		_, _ = rand.Read(l.random) // never fails
	}
	text := l.random[:size]
	l.random = l.random[size:]
	for i, b := range text {
		text[i] = base32[b%32]
	}
	return l.options.Identity + "/" + string(text)
}
