package failure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Driver creates the errors of one driver, by its name.
type Driver string

// New returns an error of op on name, which may be empty.
func (d Driver) New(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Driver: string(d), Name: name, Kind: kind, Err: err}
}

// Unsent returns the error of a ctx that ended before a request was sent.
func (d Driver) Unsent(ctx context.Context, op, name string) error {
	return d.New(op, name, interlock.Definite, context.Cause(ctx))
}

// Unanswered returns the error of a ctx that ended after a request was sent.
func (d Driver) Unanswered(ctx context.Context, op, name string) error {
	return d.New(op, name, interlock.Uncertain, context.Cause(ctx))
}

// Closed returns the error of a call after Close.
func (d Driver) Closed(op, name string) error {
	return d.New(op, name, interlock.Bug, interlock.ErrClosed)
}

// OfPart returns the error of op on name, which consists of several locks, from the error of one of
// them. A HeldError keeps its holder.
func (d Driver) OfPart(ctx context.Context, op, name string, err error) error {
	if held := (*interlock.HeldError)(nil); errors.As(err, &held) {
		return &interlock.HeldError{Name: name, Owner: held.Owner, Since: held.Since, Until: held.Until}
	}
	kind := interlock.Kind(err)
	if ctx.Err() != nil && kind == interlock.Uncertain {
		kind = interlock.Definite // the caller's own cause: nothing was acquired
	}
	return d.New(op, name, kind, err)
}

// EndedEarly adds to err, of work under a claim on name, that the claim had ended before the work.
func (d Driver) EndedEarly(op, name string, err, cause error) error {
	if cause == interlock.ErrReleased {
		return err
	}
	return errors.Join(err, d.New(op, name, interlock.Uncertain, cause))
}

// Pause waits before the next attempt to acquire name: for a time or a hint. It fails if ctx or the
// driver's life ends.
func (d Driver) Pause(ctx, life context.Context, name string, woken <-chan struct{}, t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-woken:
	case <-timer.C:
	case <-life.Done():
		return d.New("acquire", name, interlock.Uncertain, interlock.ErrClosed)
	case <-ctx.Done():
		return d.Unanswered(ctx, "acquire", name)
	}
	return nil
}

// CheckNames rejects invalid names of locks and owners.
func (d Driver) CheckNames(op, name, owner string) error {
	if err := driver.CheckText("the name", name, 1, driver.MaxName); err != nil {
		return d.New(op, name, interlock.Bug, err)
	}
	if err := driver.CheckText("the owner", owner, 1, driver.MaxName); err != nil {
		return d.New(op, name, interlock.Bug, errors.New(err.Error())) // the name is valid
	}
	return nil
}

// CheckBreak rejects a break that cannot be recorded.
func (d Driver) CheckBreak(b driver.Break) error {
	if err := d.CheckNames("break", b.Name, b.Owner); err != nil {
		return err
	}
	for _, s := range []string{b.Reason, b.By} {
		if driver.CheckText("it", s, 1, driver.MaxName) != nil {
			return d.New("break", b.Name, interlock.Bug,
				fmt.Errorf("a reason and an author are required, of 1 to %d bytes of UTF-8 each", driver.MaxName))
		}
	}
	return nil
}
