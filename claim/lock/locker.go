package lock

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/observe"
)

// retries is how long to wait between requests that failed.
var retries = backoff.Policy{First: 100 * time.Millisecond, Max: 2 * time.Second}

// granter is what fenced and advisory drivers have in common here; the token of
// an advisory grant is 0.
type granter interface {
	acquire(ctx context.Context, r driver.Request) (driver.Grant, error)
	release(ctx context.Context, name, owner string) error
}

type fencedBackend struct{ d driver.Fenced }

func (b fencedBackend) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return b.d.Acquire(ctx, r)
}

func (b fencedBackend) release(ctx context.Context, name, owner string) error {
	return b.d.Release(ctx, name, owner)
}

type advisoryBackend struct{ d driver.Advisory }

func (b advisoryBackend) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	lease, err := b.d.Acquire(ctx, r)
	return driver.Grant{Lease: lease}, err
}

func (b advisoryBackend) release(ctx context.Context, name, owner string) error {
	return b.d.Release(ctx, name, owner)
}

// locker is what Fenced and Advisory share: the gates, and the I/O for them.
type locker struct {
	backend granter
	batch   driver.Batch // nil if the driver takes names one by one only
	name    string       // of the driver, for errors
	options Options
	ctx     context.Context // ends at close
	cancel  context.CancelCauseFunc

	mu      sync.Mutex
	gates   map[string]*gate
	random  *rand.Rand
	running int           // goroutines of ours
	idle    chan struct{} // closed when closed and running is 0; nil before close
}

func newLocker(b granter, g interlock.Guarantees, o *Options) (*locker, error) {
	g, err := o.ownLease(g)
	if err != nil {
		return nil, err
	}
	options, err := o.resolve(g)
	if err != nil {
		return nil, err
	}
	if err := g.Check(options.Require); err != nil {
		return nil, err
	}
	if err := options.checkLockDelay(g); err != nil {
		return nil, err
	}
	var seed [16]byte
	crand.Read(seed[:]) // never fails
	l := &locker{
		backend: b, name: g.Driver, options: options, gates: make(map[string]*gate),
		random: rand.New(rand.NewPCG(binary.NativeEndian.Uint64(seed[:8]), binary.NativeEndian.Uint64(seed[8:]))),
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l, nil
}

func (l *locker) do(ctx context.Context, name string, fn func(context.Context, claim) error) (err error) {
	if c, ok := l.sharedBy(ctx, name); ok {
		if err = fn(ctx, c); c.h.cause() != nil {
			err = c.h.orEndedEarly(err)
		}
		return err
	}
	h, err := l.acquire(ctx, ctx, name, false)
	if err != nil {
		return err
	}
	defer func() {
		_ = h.release(ctx) // Hooks.ReleaseFailed tells
		err = h.orEndedEarly(err)
	}()
	return fn(h.ctx, claim{h: h})
}

// claim is what Acquire and TryAcquire return.
func (l *locker) claim(ctx context.Context, name string, try bool) (claim, error) {
	if c, ok := l.sharedBy(ctx, name); ok {
		return c, nil
	}
	h, err := l.acquire(context.WithoutCancel(ctx), ctx, name, try)
	return claim{h: h}, err
}

// sharedBy is the claim that a call in ctx shares, if that is allowed.
func (l *locker) sharedBy(ctx context.Context, name string) (claim, bool) {
	if !l.options.Reentrant || ctx.Err() != nil {
		return claim{}, false
	}
	h := l.heldBy(ctx, name)
	return claim{h: h, shared: true}, h != nil
}

// acquire waits until wait ends; the claim's context descends from parent.
func (l *locker) acquire(parent, wait context.Context, name string, try bool) (*hold, error) {
	return l.acquireWithin(l.options.Wait, parent, wait, name, try)
}

// acquireWithin is acquire with a bound of its own, 0 for none.
func (l *locker) acquireWithin(bound time.Duration, parent, wait context.Context, name string, try bool) (*hold, error) {
	began := boottime.Now()
	h, err := l.queue(bound, parent, wait, name, try)
	if f := l.options.Hooks.Acquired; f != nil {
		e := observe.LockAcquired{Name: name, Wait: boottime.Now().Sub(began), Err: err}
		if h != nil {
			e.Owner, e.Token = h.place.owner, h.token
		}
		f(e)
	}
	return h, err
}

func (l *locker) queue(bound time.Duration, parent, wait context.Context, name string, try bool) (*hold, error) {
	ctx, cancel := wait, context.CancelFunc(func() {})
	if bound > 0 {
		ctx, cancel = context.WithTimeout(wait, bound)
	}
	defer cancel()

	began := boottime.Now()
	w := &waiter{parent: parent, try: try, result: make(chan outcome, 1)}
	l.mu.Lock()
	if err := l.refuse(wait, name); err != nil {
		l.mu.Unlock()
		return nil, l.fail(name, err)
	}
	g := l.join(name, w)
	l.mu.Unlock()

	select {
	case o := <-w.result:
		return o.hold, o.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if told := l.leave(g, w); told {
		o := <-w.result
		return o.hold, o.err
	}
	return nil, l.waitedTooLong(wait, g, began)
}

// waitedTooLong says why a wait ended without an answer. A caller that bounds its
// wait by a context with the cause ErrHeld is told as if Options.Wait had passed.
func (l *locker) waitedTooLong(wait context.Context, g *gate, began boottime.Instant) error {
	cause := context.Cause(wait)
	var trouble error
	if g.place != nil && g.place.trouble != nil {
		trouble = fmt.Errorf("tried for %v, the last request failed: %w",
			boottime.Now().Sub(began).Round(time.Millisecond), g.place.trouble)
	}
	fail := func(kind interlock.ErrorKind, err error) error {
		return &interlock.Error{Op: "acquire", Driver: l.name, Name: g.name, Kind: kind, Err: err}
	}
	switch {
	case cause != nil && !errors.Is(cause, interlock.ErrHeld) && trouble != nil:
		return fail(ownCause(cause), fmt.Errorf("%w; %w", cause, trouble))
	case cause != nil && !errors.Is(cause, interlock.ErrHeld):
		return l.fail(g.name, cause)
	case trouble != nil:
		return fail(interlock.Retryable, trouble)
	}
	return &interlock.HeldError{Name: g.name, Owner: g.lastHolder()}
}

// refuse says why a call is not even let into the queue.
func (l *locker) refuse(ctx context.Context, name string) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case l.idle != nil:
		return interlock.ErrClosed
	case name == "" || len(name) > driver.MaxName:
		return fmt.Errorf("%w: it has %d bytes, 1 to %d are allowed", interlock.ErrName, len(name), driver.MaxName)
	}
	if h, _ := ctx.Value(heldKey{l, name}).(*hold); h != nil && h.ended == nil {
		return interlock.ErrReentered
	}
	return nil
}

func (l *locker) fail(name string, err error) error {
	return &interlock.Error{Op: "acquire", Driver: l.name, Name: name, Kind: ownCause(err), Err: err}
}

// ownCause is the kind of the caller's own cause: nothing was acquired.
func ownCause(err error) interlock.ErrorKind {
	if kind := interlock.Kind(err); kind != interlock.Uncertain {
		return kind
	}
	return interlock.Definite
}

func (l *locker) heldBy(ctx context.Context, name string) *hold {
	h, _ := ctx.Value(heldKey{l, name}).(*hold)
	if h == nil || h.cause() != nil {
		return nil
	}
	return h
}

// start runs the attempt to get p granted, in a goroutine of its own: it belongs
// to the gate, not to the goroutine that happened to come first.
func (l *locker) start(g *gate, p *place) {
	ctx, cancel := context.WithCancelCause(l.ctx)
	p.cancel = cancel
	l.begin()
	go func() {
		defer cancel(nil)
		grant, err := l.attempt(ctx, g, p)
		l.mu.Lock()
		settled := err == nil && l.granted(g, p, grant)
		if err != nil {
			l.refused(g, p, err)
			settled = errors.Is(err, interlock.ErrHeld) && !p.uncertain // nothing was left behind
		}
		l.mu.Unlock()
		if settled {
			l.finish()
			return
		}
		l.giveUpInBackground(g.name, p.owner)
	}()
}

// attempt asks the backend until it grants, says no, has failed too often in a
// row, or nobody waits any more. Repeating with the same owner converges, whatever became of the
// requests whose answers were lost.
func (l *locker) attempt(ctx context.Context, g *gate, p *place) (driver.Grant, error) {
	request := l.requestOf(g, p)
	for {
		grant, err := l.request(ctx, p, request)
		if err == nil || !worthRepeating(err) || ctx.Err() != nil {
			return grant, err
		}
		if failed := l.troubled(g.name, p, err); l.tooOften(failed, p.noWait) || !l.pause(ctx, retries, failed) {
			return grant, err
		}
	}
}

// request asks once. A grant whose lease has ended on its way is none.
func (l *locker) request(ctx context.Context, p *place, r driver.Request) (driver.Grant, error) {
	l.mu.Lock()
	p.lost = nil // that was an earlier grant
	l.mu.Unlock()
	grant, err := l.backend.acquire(ctx, r)
	if err == nil {
		grant.Lease = l.believed(grant.Lease)
	}
	if err == nil && grant.Lease.Remaining() <= 0 {
		err = &interlock.Error{Op: "acquire", Driver: l.name, Name: r.Name, Kind: interlock.Uncertain,
			Err: fmt.Errorf("the answer took longer than the lease: %w", interlock.ErrExpired)}
	}
	return grant, err
}

// tooOften reports whether so many requests in a row may not fail.
func (l *locker) tooOften(failed int, try bool) bool {
	most := l.options.Attempts
	if most == 0 && try {
		most = DefaultAttempts
	}
	return most > 0 && failed >= most
}

// troubled notes that a request failed, and counts those in a row.
func (l *locker) troubled(name string, p *place, err error) (failed int) {
	l.mu.Lock()
	p.failed++
	failed = p.failed
	p.trouble = err
	p.uncertain = p.uncertain || interlock.Kind(err) == interlock.Uncertain
	l.mu.Unlock()
	if f := l.options.Hooks.RequestFailed; f != nil {
		f(observe.LockRequestFailed{Name: name, Owner: p.owner, Failed: failed, Err: err})
	}
	return failed
}

func worthRepeating(err error) bool {
	kind := interlock.Kind(err)
	return (kind == interlock.Retryable || kind == interlock.Uncertain) && !errors.Is(err, interlock.ErrHeld)
}

// pause waits after so many failures; it reports false if ctx ended.
func (l *locker) pause(ctx context.Context, p backoff.Policy, failed int) bool {
	l.mu.Lock()
	delay := p.Delay(failed, l.random.Float64())
	l.mu.Unlock()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *locker) events(g *gate, p *place) driver.Events {
	return driver.Events{
		Waiting: func(at driver.Place) { l.waiting(g, p, at) },
		Renewed: func(took time.Duration, err error) {
			if f := l.options.Hooks.Renewed; f != nil {
				f(observe.LockRenewed{Name: g.name, Owner: p.owner, Took: took, Err: err})
			}
		},
		Lost: func(cause error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			if h := g.holder; h != nil && h.place == p {
				l.over(h, cause)
				return
			}
			p.lost = cause
		},
	}
}

func (l *locker) waiting(g *gate, p *place, at driver.Place) {
	l.mu.Lock()
	g.last = at.Holder
	p.failed, p.trouble = 0, nil // it has its place: what failed before is over
	l.mu.Unlock()
	if f := l.options.Hooks.Waiting; f != nil {
		f(observe.LockWaiting{Name: g.name, Owner: p.owner, Ahead: at.Ahead, Holder: at.Holder})
	}
}

// giveUp releases what owner has in the backend, whatever becomes of ctx,
// within a bound.
func (l *locker) giveUp(ctx context.Context, bound time.Duration, name, owner string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	for failed := 1; ; failed++ {
		err := l.backend.release(ctx, name, owner)
		if err == nil {
			return nil
		}
		if !worthRepeating(err) || !l.pause(ctx, retries, failed) {
			if f := l.options.Hooks.ReleaseFailed; f != nil {
				f(observe.LockReleaseFailed{Name: name, Owner: owner, Err: err})
			}
			return err
		}
	}
}

func (l *locker) giveUpInBackground(name, owner string) {
	defer l.finish()
	_ = l.giveUp(context.Background(), l.options.ReleaseTimeout, name, owner) // Hooks.ReleaseFailed tells
}

// begin counts a goroutine in, with mu held; finish counts it out.
func (l *locker) begin() { l.running++ }

func (l *locker) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
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
	for _, g := range l.gates {
		for _, w := range g.waiters {
			w.result <- outcome{err: l.fail(g.name, interlock.ErrClosed)}
		}
		g.waiters = nil
	}
	l.announceIdle()
	idle := l.idle
	l.mu.Unlock()
	select {
	case <-idle:
		return nil
	default: // an idle lock closes whatever became of ctx
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return &interlock.Error{Op: "close lock", Driver: l.name, Kind: interlock.Uncertain, Err: context.Cause(ctx)}
	}
}

func (l *locker) newOwner() string {
	return l.options.Identity + "/" + crand.Text()
}
