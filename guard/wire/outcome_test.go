package wire_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/guard/wire"
)

// TestWhatWasSentIsNeverDenied: net/http fails with the cause with which a
// request's context ended, and causes are as good as proofs elsewhere. A request
// on its way is of unknown outcome whatever ended it: the claim, whose context is
// the caller's own in the body of Do, or the caller, with whatever cause.
func TestWhatWasSentIsNeverDenied(t *testing.T) {
	t.Parallel()
	in := make(chan bool, 1)
	url := service(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		in <- true
		<-r.Context().Done()
	}))
	by := client(t, &wire.Transport{})
	stale := &interlock.StaleTokenError{Resource: "another"}
	for name, c := range map[string]struct {
		ctx  func(*claim) context.Context
		with error
	}{
		"the claim's own context": {func(c *claim) context.Context { return wire.Under(c.ctx, c, "") }, interlock.ErrLost},
		"a sibling's failure":     {func(c *claim) context.Context { return wire.Under(c.ctx, grant("r", token(1), bound), "") }, stale},
		"no cause":                {func(c *claim) context.Context { return wire.Under(c.ctx, grant("r", token(1), bound), "") }, context.Canceled},
		"a carried token":         {func(c *claim) context.Context { return wire.Carry(c.ctx, "v4.public.x") }, interlock.ErrExpired},
	} {
		held := grant("r", token(1), bound)
		go func() { <-in; held.end(c.with) }()
		_, _, err := post(c.ctx(held), by, url)
		if interlock.Kind(err) != interlock.Uncertain || !errors.Is(err, interlock.ErrUncertain) || !errors.Is(err, c.with) {
			t.Errorf("%s: %v (%v)", name, err, interlock.Kind(err))
		}
	}
}

// TestRefusalsSayNoMoreThanIsKnown: an error is classified by its own kind, not by an
// error somewhere in its chain.
func TestRefusalsSayNoMoreThanIsKnown(t *testing.T) {
	t.Parallel()
	unsure := func(err error) error {
		return &interlock.Error{Op: "pay", Name: "r", Kind: interlock.Uncertain, Err: err}
	}
	url := service(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	passage, end, err := wire.Options{}.At(time.Now).Admit(t.Context(), []string{"4096;resource=r;remaining=50"}, nil)
	ok(t, err)
	defer end()
	req, err := http.NewRequestWithContext(passage.Context(), http.MethodPost, url, nil)
	ok(t, err)
	_, sent := client(t, &wire.Transport{}).Do(req) // a call of the handler's own, which was made
	if !errors.Is(sent, interlock.ErrExpired) {
		t.Fatalf("net/http says %v", sent)
	}
	for _, err := range []error{sent, fmt.Errorf("pay: %w", sent), unsure(&wire.Refusal{Reason: wire.Busy}),
		unsure(&interlock.StaleTokenError{Resource: "r"}), unsure(interlock.ErrImplausibleToken), unsure(interlock.ErrLost)} {
		if r, found := wire.RefusalOf(err); !found || r.Reason != wire.Unknown {
			t.Errorf("%v is answered as %v", err, r)
		}
	}
}
