package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync/atomic"

	"github.com/interlock-dev/interlock"
)

// A Call is one attempt to make a call.
type Call struct {
	Resource  string
	Operation string // empty if it has none
	Key       string // for an API that takes one; empty if there is no operation
	Token     interlock.Token

	ready   func() error
	granted atomic.Bool // somebody was told that it may be sent
}

// Ready refuses the call if it must not be sent any more: the claim has ended, or
// the session that holds the mark may have. It does not block, and is asked as
// late as can be; [Transport] asks before each write. Once it has agreed the call
// counts as sent.
func (c *Call) Ready() error {
	if err := c.ready(); err != nil {
		return err
	}
	c.granted.Store(true)
	return nil
}

// outcome makes an error of a [Send] Uncertain unless it is certain that nothing
// was sent: an error says so by a kind of its own, and the end of a context, which
// has no such, does not.
func (c *Call) outcome(err error) error {
	var says interface{ ErrorKind() interlock.ErrorKind }
	if err == nil || !c.granted.Load() && errors.As(err, &says) && says.ErrorKind() != interlock.Uncertain {
		return err
	}
	if errors.Is(err, interlock.ErrUncertain) && interlock.Kind(err) == interlock.Uncertain {
		return err
	}
	return &interlock.Error{Op: "make call", Name: c.Resource, Kind: interlock.Uncertain, Err: err}
}

// Send makes a call, and returns the status that the other side answered with,
// in the terms of HTTP, or an error. One that bears a kind, as [interlock.Error]
// does, and not Uncertain, says that the call was certainly not sent, unless
// [Call.Ready] had agreed to it; any other, such as that of a context, that it may
// have been. Send returns when ctx ends, which is when the claim does, or when the
// mark is not held any more.
type Send func(ctx context.Context, call *Call) (status int, err error)

// Key is the idempotency key of an operation on a resource: 64 hexadecimal
// digits, the same for ever, whichever claim the call is made under.
func Key(resource, operation string) string {
	sum := sha256.Sum256([]byte("interlock call\x00" + resource + "\x00" + operation))
	return hex.EncodeToString(sum[:])
}

// settles reports whether an answer says what became of the call: one of the
// server's errors does not, nor one that asks to try again.
func settles(status int) bool {
	return status >= 200 && status < 500 && status != 408 && status != 425 && status != 429
}

type callKey struct{}

func withCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

func callOf(ctx context.Context) (*Call, bool) {
	c, ok := ctx.Value(callKey{}).(*Call)
	return c, ok
}
