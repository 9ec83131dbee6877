package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync"

	"github.com/interlock-dev/interlock"
)

// A Call is one attempt to make a call.
type Call struct {
	Resource  string
	Operation string // empty if the call changes nothing
	Key       string // the idempotency key; empty if there is no operation
	Token     interlock.Token

	ready   func() error
	mu      sync.Mutex
	granted bool // Ready has permitted the sending
	over    bool // the Send has returned: nothing may be sent
}

// Ready returns an error if the call must not be sent any more. That is so if the claim has
// ended, the session that holds the mark may have ended, or the [Send] has returned. It does
// not block. Call it as late as possible; [Transport] calls it before each write. Once it has
// returned nil, the call counts as sent.
func (c *Call) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return &interlock.Error{Op: "make call", Name: c.Resource, Kind: interlock.Definite, Err: errors.New("its deadline has passed")}
	}
	if err := c.ready(); err != nil {
		return err
	}
	c.granted = true
	return nil
}

// sent reports whether the call may have been sent. If end is set, nothing may be sent
// afterwards.
func (c *Call) sent(end bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = c.over || end
	return c.granted
}

// outcome makes the error of a [Send] Uncertain, unless certainly nothing was sent. ctx is the
// context of the Send.
func (c *Call) outcome(ctx context.Context, err error) error {
	if sent := c.sent(true); err == nil || !sent && denies(ctx, err) {
		return err
	}
	if errors.Is(err, interlock.ErrUncertain) && interlock.Kind(err) == interlock.Uncertain {
		return err
	}
	return &interlock.Error{Op: "make call", Name: c.Resource, Kind: interlock.Uncertain, Err: err}
}

// denies reports whether err states by its own kind that nothing was sent. The error of a
// context has no kind. The cause with which ctx ended may have a kind that concerns something
// else, because clients return the cause unchanged, whatever they have sent.
func denies(ctx context.Context, err error) bool {
	var kind interface {
		error
		ErrorKind() interlock.ErrorKind
	}
	return errors.As(err, &kind) && kind.ErrorKind() != interlock.Uncertain && !errors.Is(context.Cause(ctx), kind)
}

// Send makes a call and returns the HTTP status of the answer, or an error. If the error has a
// kind, as [interlock.Error] does, that is not Uncertain, the call was certainly not sent,
// unless [Call.Ready] returned nil. After any other error, such as that of a context or its
// cause, the call may have been sent. Send must return when ctx ends: ctx ends with the claim,
// and when the mark is no longer held.
type Send func(ctx context.Context, call *Call) (status int, err error)

// Key returns the idempotency key of an operation on a resource: 64 hexadecimal digits. It
// never changes and does not depend on the claim.
func Key(resource, operation string) string {
	sum := sha256.Sum256([]byte("interlock call\x00" + resource + "\x00" + operation))
	return hex.EncodeToString(sum[:])
}

type callKey struct{}

func withCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

func callOf(ctx context.Context) (*Call, bool) {
	c, ok := ctx.Value(callKey{}).(*Call)
	return c, ok
}
