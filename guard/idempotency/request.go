package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// A Request is one attempt to execute a request. [From] returns it from the context of a
// [Func]. Do not use it after the Func has returned. It is safe for concurrent use.
type Request struct {
	store    *Store
	id       driver.IdempotencyID
	owner    string
	sent     boottime.Instant // before the claim was sent
	unclear  bool             // a claim that was sent may have been stored
	allow    func(http.Header) http.Header
	declined atomic.Bool

	ctx    context.Context // ends with the lease
	cancel context.CancelCauseFunc
	losing sync.Once

	busy   chan struct{} // has one entry while a phase runs; guards the fields below
	record driver.IdempotencyRecord
	points points
	last   *Response // of LastPhase
	doubt  func()    // accepts the phase whose outcome is unknown; nil if none is
	over   bool      // the function has returned
}

type requestKey struct{}

// From returns the request for whose function ctx was created, or nil if there is none.
func From(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// Attempt returns the number of this attempt, from 1. Earlier attempts did not finish, and may
// have left effects outside of phases.
func (r *Request) Attempt() int { return r.record.Attempt }

// Key returns the key that the client chose.
func (r *Request) Key() string { return r.id.Key }

// Scope returns the scope of the request.
func (r *Request) Scope() string { return r.id.Scope }

// Input returns the input that the first attempt stored. The caller must not change it.
func (r *Request) Input() []byte { return r.record.Input }

// Decline prevents the answer from being stored: the key becomes unused, and the next request
// with it is executed. Use it for a request that was refused before it had any effect. If a
// phase was committed, the request stays unfinished instead.
func (r *Request) Decline() { r.declined.Store(true) }

// answered reports whether the last phase has recorded the answer.
func (r *Request) answered(ctx context.Context) bool {
	defer r.wait()()
	_ = r.settle(ctx)
	return r.last != nil
}

// wait waits for a running phase, and excludes others until leave is called.
func (r *Request) wait() (leave func()) {
	r.busy <- struct{}{}
	return func() { <-r.busy }
}

// turn waits like wait, and also ends with ctx or with the attempt.
func (r *Request) turn(ctx context.Context) (leave func(), err error) {
	leave = func() { <-r.busy }
	select {
	case r.busy <- struct{}{}:
		return leave, nil
	default:
	}
	select {
	case r.busy <- struct{}{}:
		return leave, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-r.ctx.Done():
		return nil, context.Cause(r.ctx)
	}
}

// run executes r and records its outcome.
func (s *Store) run(ctx context.Context, r *Request, fn Func) (response Response, kept bool, err error) {
	inside, end := r.begin(ctx)
	returned := false
	defer func() {
		if !returned { // fn panicked; the panic continues
			end()
			_ = s.give(ctx, r, false)
		}
	}()
	response, err = fn(inside)
	returned = true
	end()
	switch {
	case r.answered(ctx):
		return *r.last, true, nil
	case err != nil:
		// If the release fails, the lease expires.
		_ = s.give(ctx, r, false)
		return Response{}, false, err
	case r.declined.Load():
		_ = s.give(ctx, r, len(r.points) == 0 && r.doubt == nil)
		return response, false, nil
	case r.doubt != nil: // fn ignored it; if it was the last phase, retries receive its answer
		_ = s.give(ctx, r, false)
		return Response{}, false, &interlock.Error{Op: "finish request", Name: r.id.Key, Kind: interlock.Uncertain, Err: errDoubt}
	}
	if err := s.record(ctx, r.finish(response)); errors.Is(err, interlock.ErrLost) {
		return Response{}, false, failure.About("finish request", r.id.Key, err)
	} else if err != nil { // whatever its kind: the request was executed
		return Response{}, false, &interlock.Error{Op: "finish request", Name: r.id.Key, Kind: interlock.Uncertain, Err: err}
	}
	return response, true, nil
}

var errDoubt = errors.New("a phase may have been committed, and the store cannot tell")

// finish returns the update that stores an answer.
func (r *Request) finish(response Response) driver.IdempotencyUpdate {
	if r.allow != nil {
		response.Header = r.allow(response.Header)
	}
	return driver.IdempotencyUpdate{ID: r.id, Owner: r.owner, Lease: r.store.options.Lease,
		Answer: response.keep(r.store.options.MaxAnswer), Keep: r.store.options.Retention}
}

// begin renews the lease until end is called. end waits for a running phase and for the
// renewal.
func (r *Request) begin(ctx context.Context) (inside context.Context, end func()) {
	inside, r.cancel = context.WithCancelCause(context.WithValue(ctx, requestKey{}, r))
	r.ctx = inside
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var renewal sync.WaitGroup
	renewal.Go(func() { r.renew(renewing) })
	return inside, func() {
		r.cancel(interlock.ErrReleased)
		leave := r.wait()
		r.over = true
		leave()
		stop()
		renewal.Wait()
	}
}

// lost ends the attempt's context and calls the hook, once.
func (r *Request) lost(cause error) {
	r.losing.Do(func() {
		r.cancel(cause)
		report.Now(r.store.options.Hooks.Lost, observe.IdempotencyLost{Scope: r.id.Scope, Operation: r.id.Operation, Key: r.id.Key,
			Attempt: r.record.Attempt, Cause: cause})
	})
}

// keyHeader is the header of draft-ietf-httpapi-idempotency-key-header-07.
const keyHeader = "Idempotency-Key"

var (
	errKeys     = errors.New("there is more than one")
	errKeyQuote = errors.New(`it is not a quoted string of RFC 8941: end it with ", and use \ only before " and \`)
	errKeyText  = errors.New("it must be printable ASCII; without quotes, it must have no space, comma, semicolon, quote or backslash")
)

// ParseKey parses the values of an Idempotency-Key header. The key is one quoted string of RFC
// 8941, whose parameters are ignored, or the same without quotes, as most clients send it. Both
// forms are the same key of 1 to 255 bytes. Without a value it returns the empty key.
func ParseKey(values []string) (key string, err error) {
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", errKeys
	}
	text := strings.Trim(values[0], " \t")
	if strings.HasPrefix(text, `"`) {
		key, err = unquote(text[1:])
	} else if key = text; strings.ContainsAny(key, " ,;\"\\") || !printable(key) {
		err = errKeyText
	}
	if err == nil && (key == "" || len(key) > driver.MaxIdempotencyName) {
		err = fmt.Errorf("it has 1 to %d bytes, not %d", driver.MaxIdempotencyName, len(key))
	}
	if err != nil {
		return "", err
	}
	return key, nil
}

// unquote parses the text after an opening quote.
func unquote(text string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			if rest := text[i+1:]; rest != "" && rest[0] != ';' {
				return "", errKeyQuote
			}
			return b.String(), nil
		case c == '\\':
			if i++; i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", errKeyQuote
			}
			b.WriteByte(text[i])
		case !printable(text[i : i+1]):
			return "", errKeyText
		default:
			b.WriteByte(c)
		}
	}
	return "", errKeyQuote
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}
