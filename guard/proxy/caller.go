package proxy

import (
	"cmp"
	"context"
	"maps"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// DefaultWaiting is the default of Options.Waiting.
const DefaultWaiting = 100

// MaxOperation is the maximum length of an operation, in bytes.
const MaxOperation = 255

// Options configure a [Caller]; nil and the zero value are valid.
type Options struct {
	// Repeat declares that the API accepts [Call.Key] as an idempotency key. Then a call whose
	// outcome is unknown is sent again. Otherwise it is refused with an [InDoubtError].
	Repeat bool
	// Statuses overrides [DefaultOutcome] for the statuses that an API defines otherwise.
	Statuses map[int]Outcome
	// Waiting is the maximum number of calls of this process per resource, including the
	// running one. Further calls are refused as Retryable. 0 or less means [DefaultWaiting].
	Waiting int
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Proxy

	now func() time.Time
}

func (o *Options) resolve() Options {
	r := *cmp.Or(o, &Options{})
	r.Statuses = maps.Clone(r.Statuses)
	r.Waiting = cmp.Or(max(r.Waiting, 0), DefaultWaiting)
	r.Hooks = r.Hooks.WithDefaults()
	if r.now == nil {
		r.now = time.Now
	}
	return r
}

// A Caller makes calls to resources that cannot check tokens; see the package comment. It is
// safe for concurrent use, and needs no Close.
type Caller struct {
	by      keeper
	lanes   lanes
	options Options
}

// keeper stores the marks.
type keeper interface {
	// call enters, calls send while certainly no other token has entered, and records the
	// result. tried reports that send was called. An error that is not Uncertain means that
	// nothing was sent.
	call(ctx context.Context, c interlock.Claim, call *Call, send Send) (status int, tried bool, err error)
}

func newCaller(by keeper, o Options) *Caller {
	return &Caller{by: by, options: o, lanes: lanes{most: o.Waiting, busy: map[string]*lane{}}}
}

// NewUnrecorded returns a Caller with marks in store that records nothing: a repeated call is
// sent again. The package comment lists what this does not protect.
func NewUnrecorded(store *fence.Store, o *Options) *Caller {
	return newCaller(loose{store}, o.resolve())
}

// Do makes a call to resource under c. It waits for its turn, enters the token of c, and then
// runs send at most once. operation is 1 to [MaxOperation] bytes of UTF-8 without NUL. It is
// empty for a call that changes nothing; such a call is not recorded and has no key.
//
// Do returns the status of the answer once it is recorded, also if the status reports an error.
// Otherwise the error is one of:
//
//   - a [interlock.StaleTokenError], the cause with which c ended, or any other error that is
//     not Uncertain: the call was not sent
//   - a [DoneError] or an [InDoubtError]: an earlier attempt was sent, or may have been
//   - any other Uncertain error: the call may have been sent and is in doubt. With a status,
//     the answer arrived and could not be recorded
//
// Do waits as long as ctx and c last. It never retries.
func (p *Caller) Do(ctx context.Context, c interlock.Claim, resource, operation string, send Send) (status int, err error) {
	if err := driver.CheckText("an operation", operation, 0, MaxOperation); err != nil {
		return 0, failure.Bug("make call", resource, "%w", err)
	}
	call := &Call{Resource: resource, Operation: operation, Token: c.Token()}
	if operation != "" {
		call.Key = Key(resource, operation)
	}
	began := p.options.now()
	tried, sent := false, began
	status, tried, err = p.turn(ctx, c, call, func(ctx context.Context, call *Call) (int, error) {
		sent = p.options.now()
		defer call.sent(true) // also if send panics
		status, err := send(ctx, call)
		return status, call.outcome(ctx, err)
	})
	p.report(call, began, sent, status, tried, err)
	return status, err
}

// turn waits for the turn of the call and makes it.
func (p *Caller) turn(ctx context.Context, c interlock.Claim, call *Call, send Send) (status int, tried bool, err error) {
	waiting, stop := join.Context(ctx, c.Context())
	leave, err := p.lanes.enter(waiting, call.Resource)
	stop()
	if err != nil {
		return 0, false, err
	}
	defer leave()
	return p.by.call(ctx, c, call, send)
}

func (p *Caller) report(call *Call, began, sent time.Time, status int, tried bool, err error) {
	h, now := p.options.Hooks, p.options.now()
	if tried && (err == nil || interlock.Kind(err) == interlock.Uncertain) {
		report.Now(h.Sent, observe.ProxySent{Resource: call.Resource, Operation: call.Operation, Token: call.Token,
			Waited: sent.Sub(began), Took: now.Sub(sent), Status: status, Err: err})
		return
	}
	report.Now(h.Refused, observe.ProxyRefused{Resource: call.Resource, Operation: call.Operation, Token: call.Token,
		Waited: now.Sub(began), Err: err})
}

// loose stores marks in a key-value store.
type loose struct{ store *fence.Store }

func (l loose) call(ctx context.Context, c interlock.Claim, call *Call, send Send) (status int, tried bool, err error) {
	ctx, stop := join.Context(ctx, c.Context())
	defer stop()
	if err := l.store.Enter(ctx, c, call.Resource); err != nil {
		return 0, false, unsent(err)
	}
	call.ready = func() error { return valid(c, call.Resource) }
	if err := call.ready(); err != nil {
		return 0, false, err
	}
	status, err = send(withCall(ctx, call), call)
	return status, true, err
}

// valid returns the cause if the claim has ended.
func valid(c interlock.Claim, resource string) error {
	if c.Valid() {
		return nil
	}
	err := interlock.ErrExpired
	if c.Context().Err() != nil {
		err = context.Cause(c.Context())
	}
	return &interlock.Error{Op: "make call", Name: resource, Kind: interlock.Definite, Err: err}
}
