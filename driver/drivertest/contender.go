package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// contender is one owner's attempt. Its methods make the tests readable.
type contender struct {
	s     *scene
	d     driver.Fenced
	req   Caller
	grant driver.Grant
}

var owners atomic.Int64

func (s *scene) contender(d driver.Fenced, name string) *contender {
	return &contender{s: s, d: d, req: Ask(name, fmt.Sprintf("drivertest/%d", owners.Add(1)))}
}

// acquire waits for the grant, or fails the test.
func (c *contender) acquire() *contender {
	c.s.Helper()
	if err := c.repeat(); err != nil {
		c.s.Fatalf("acquire %q as %s: %v", c.req.Name, c.req.Owner, err)
	}
	return c
}

// repeat is try that repeats late answers of a busy backend, as claim/lock does.
func (c *contender) repeat() error { return c.tryWhile(mayRepeat) }

// tryWhile repeats try while its error allows another one.
func (c *contender) tryWhile(again func(error) bool) error {
	ctx, cancel := context.WithTimeout(c.s.Context(), patience)
	defer cancel()
	err := c.try(ctx)
	for again(err) && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
		err = c.try(ctx)
	}
	return err
}

func (c *contender) try(ctx context.Context) (err error) {
	c.grant, err = c.d.Acquire(ctx, c.req.Request)
	return err
}

// persist is acquire that repeats every error: it acquires amid faults.
func (c *contender) persist() *contender {
	c.s.Helper()
	if err := c.tryWhile(func(err error) bool { return err != nil }); err != nil {
		c.s.Fatalf("acquire %q again and again as %s: %v", c.req.Name, c.req.Owner, err)
	}
	return c
}

// start acquires in the background and returns when the backend has received the
// request. Until then it repeats late answers of a busy backend, as claim/lock does.
// done receives the outcome. It may be a grant at once if a holder is named whose lease has ended.
func (c *contender) start(ctx context.Context, holder ...*contender) (done chan error) {
	c.s.Helper()
	done = make(chan error, 1)
	late := time.After(patience)
	for {
		go func() { done <- c.try(ctx) }()
		select {
		case <-c.req.Waiting:
			return done
		case err := <-done:
			if err == nil && len(holder) > 0 && !holder[0].valid() {
				done <- nil
				return done
			}
			if ctx.Err() != nil || !mayRepeat(err) {
				c.s.Fatalf("acquire %q as %s ended (%v) where it should wait", c.req.Name, c.req.Owner, err)
			}
			time.Sleep(20 * time.Millisecond)
		case <-late:
			c.s.Fatalf("acquire %q as %s: no word of waiting", c.req.Name, c.req.Owner)
		}
	}
}

// mayRepeat reports whether claim/lock repeats an acquire after an error, such as a late answer
// of a busy backend.
func mayRepeat(err error) bool {
	kind := interlock.Kind(err)
	return kind == interlock.Uncertain || kind == interlock.Retryable
}

// release releases the lock and requires a confirmation.
func (c *contender) release() {
	c.s.Helper()
	if err := c.tryRelease(patience); err != nil {
		c.s.Fatalf("release %q as %s: %v", c.req.Name, c.req.Owner, err)
	}
}

func (c *contender) tryRelease(bound time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.s.Context()), bound)
	defer cancel()
	return c.d.Release(ctx, c.req.Name, c.req.Owner)
}

// persistRelease releases as claim/lock does.
func (c *contender) persistRelease() {
	c.s.Helper()
	testbed.Eventually(c.s, "a release is confirmed", patience, func() bool {
		return c.tryRelease(2*time.Second) == nil
	})
}

func (c *contender) valid() bool { return c.grant.Lease.Remaining() > 0 }

// wait returns the value that done receives.
func (s *scene) wait(done <-chan error, bound time.Duration, what string) error {
	s.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(bound):
		s.Fatalf("%s: nothing after %v", what, bound)
		return nil
	}
}

// mustHold requires that the backend still rejects other owners.
func (s *scene) mustHold(c *contender) {
	s.Helper()
	other := s.contender(c.d, c.req.Name)
	other.req.NoWait = true
	if err := other.try(s.Context()); !errors.Is(err, interlock.ErrHeld) {
		s.Fatalf("%q should still be held by %s, but another who tried got: %v", c.req.Name, c.req.Owner, err)
	}
}

// mustBeEmpty requires that the backend stores nothing for name.
func (s *scene) mustBeEmpty(name string) {
	s.Helper()
	var left []string
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if left = s.backend.Residue(s.T, name); len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("residue of %q: %q", name, left)
		}
	}
}

// mustIncrease requires that tokens rise, or are absent for an advisory lock.
func (s *scene) mustIncrease(tokens []interlock.Token) {
	s.Helper()
	if tokens[0] == 0 {
		s.mustBeAdvisory()
		return
	}
	for i, token := range tokens {
		if !token.Valid() || token.Sub() != 0 {
			s.Fatalf("token %d is %d: not one that a driver may issue", i, token)
		}
		if i > 0 && token <= tokens[i-1] {
			s.Fatalf("token %d came after %d", token, tokens[i-1])
		}
	}
}

func (s *scene) mustBeAdvisory() {
	s.Helper()
	if class := s.open().Guarantees().Class; class != interlock.Advisory {
		s.Fatalf("a driver of class %v granted without a token", class)
	}
}

func (s *scene) mustBeKind(err error, kinds ...interlock.ErrorKind) {
	s.Helper()
	if err == nil || !slices.Contains(kinds, interlock.Kind(err)) {
		s.Fatalf("error of kind %v, want one of %v: %v", interlock.Kind(err), kinds, err)
	}
}
