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
	Operation string // empty if it has none
	Key       string // for an API that takes one; empty if there is no operation
	Token     interlock.Token

	ready   func() error
	mu      sync.Mutex
	granted bool // a caller got the permission to send it
	over    bool // and its outcome: it must not be sent any more
}

// Ready refuses the call if it must not be sent any more: the claim has ended, or
// the session that holds the mark may have, or the [Send] has returned. It does not
// block, and is asked as late as can be; [Transport] asks before each write. Once
// it has agreed the call counts as sent.
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

// sent reports whether it may have been; end says that it must not be any more.
func (c *Call) sent(end bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = c.over || end
	return c.granted
}

// outcome makes an error of a [Send] Uncertain unless it is certain that nothing
// was sent. ctx is the context that the Send had.
func (c *Call) outcome(ctx context.Context, err error) error {
	if sent := c.sent(true); err == nil || !sent && denies(ctx, err) {
		return err
	}
	if errors.Is(err, interlock.ErrUncertain) && interlock.Kind(err) == interlock.Uncertain {
		return err
	}
	return &interlock.Error{Op: "make call", Name: c.Resource, Kind: interlock.Uncertain, Err: err}
}

// denies reports whether err says by a kind of its own that nothing was sent. The
// end of a context has no such; and the cause with which ctx ended may have one that
// is about something else: clients return it as it is, whatever they have sent.
func denies(ctx context.Context, err error) bool {
	var says interface {
		error
		ErrorKind() interlock.ErrorKind
	}
	return errors.As(err, &says) && says.ErrorKind() != interlock.Uncertain && !errors.Is(context.Cause(ctx), says)
}

// Send makes a call, and returns the status that the other side answered with,
// in the terms of HTTP, or an error. One that bears a kind, as [interlock.Error]
// does, and not Uncertain, says that the call was certainly not sent, unless
// [Call.Ready] had agreed to it; any other, such as that of a context or the cause
// of its end, that it may have been. Send returns when ctx ends, which is when the claim does, or when the
// mark is not held any more.
type Send func(ctx context.Context, call *Call) (status int, err error)

// Key is the idempotency key of an operation on a resource: 64 hexadecimal
// digits, the same for ever, whichever claim the call is made under.
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
