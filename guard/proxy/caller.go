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
	"github.com/interlock-dev/interlock/observe"
)

// DefaultWaiting is how many calls may wait for one resource; see [Options].
const DefaultWaiting = 100

// MaxOperation is the longest operation, in bytes.
const MaxOperation = 255

// Options of a [Caller]; nil and the zero value work.
type Options struct {
	// Repeat says that the other side takes [Call.Key]: a call of which it is not
	// known whether it was made is then made again. Otherwise it is refused with an
	// [InDoubtError].
	Repeat bool
	// Statuses changes the meaning of statuses: what the API defines as final, and
	// what as refused, for statuses that [DefaultOutcome] judges in another way.
	Statuses map[int]Outcome
	// Waiting is how many calls, with the one that is made, may be in this process
	// for one resource; more are refused, Retryable. 0 means [DefaultWaiting].
	Waiting int
	// Hooks receive what happens; nil logs failures, see package observe.
	Hooks *observe.Proxy

	now func() time.Time
}

func (o *Options) resolve() Options {
	var r Options
	if o != nil {
		r = *o
	}
	r.Statuses = maps.Clone(r.Statuses)
	r.Waiting = cmp.Or(r.Waiting, DefaultWaiting)
	r.Hooks = r.Hooks.WithDefaults()
	if r.now == nil {
		r.now = time.Now
	}
	return r
}

// A Caller makes calls to resources that cannot check tokens; see the package's
// comment. It is safe for concurrent use, and has nothing to close.
type Caller struct {
	by      keeper
	lanes   lanes
	options Options
}

// keeper keeps the marks.
type keeper interface {
	// call enters, sends while it can tell that nobody else has entered, and
	// records. tried says that send was run, and an error that is not Uncertain
	// that nothing was sent.
	call(ctx context.Context, c interlock.Claim, call *Call, send Send) (status int, tried bool, err error)
}

func newCaller(by keeper, o Options) *Caller {
	return &Caller{by: by, options: o, lanes: lanes{most: o.Waiting, busy: map[string]*lane{}}}
}

// NewUnrecorded makes calls under marks that store keeps, and records nothing: a call
// is made again whenever it is asked for. What it does not promise is in the
// package's comment.
func NewUnrecorded(store *fence.Store, o *Options) *Caller {
	return newCaller(loose{store}, o.resolve())
}

// Do makes a call to resource under c, when it is its turn: send is run at most
// once, after the token of c has entered. operation is 1 to [MaxOperation] bytes
// of UTF-8 without NUL, or empty for a call that changes nothing: it is not
// recorded, and has no key.
//
// It returns the status of the answer, also of one that is an error of the other
// side, once it is recorded. Otherwise:
//
//   - a [interlock.StaleTokenError], the cause with which c ended, or any error
//     that is not Uncertain: the call was not sent;
//   - a [DoneError] or an [InDoubtError]: an earlier attempt was, or may have been;
//   - any other Uncertain error: it may have been sent now, and is in doubt. With
//     a status, the answer came and could not be recorded.
//
// It waits for as long as ctx and c last. It retries nothing.
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
		status, err := send(ctx, call)
		return status, call.outcome(ctx, err)
	})
	p.report(call, began, sent, status, tried, err)
	return status, err
}

// turn waits for the turn and makes the call.
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
	switch {
	case tried && (err == nil || interlock.Kind(err) == interlock.Uncertain):
		if h.Sent != nil {
			h.Sent(observe.ProxySent{Resource: call.Resource, Operation: call.Operation, Token: call.Token,
				Waited: sent.Sub(began), Took: now.Sub(sent), Status: status, Err: err})
		}
	case h.Refused != nil:
		h.Refused(observe.ProxyRefused{Resource: call.Resource, Operation: call.Operation, Token: call.Token,
			Waited: now.Sub(began), Err: err})
	}
}

// loose keeps marks in a key-value store.
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

// valid refuses a claim that has ended, with the cause.
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
