package choreography

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
)

// ErrPivot refuses the undo of a step that is done and cannot be undone. Undo ran nothing; roll
// the transaction back. It is Definite: make the message a dead letter. The tracker reports the
// saga as [Contradictory].
var ErrPivot = errors.New("the step is done and cannot be undone")

// A Participant is the service of one step. Its barrier and its outbox are tables of the database
// that has the step's effects. It is safe for concurrent use, each call with its own transaction.
type Participant struct {
	Definition *Definition
	Step       string // its event Done
	Outbox     outbox.Table
	Barrier    barrier.Table
}

// Do handles an event that causes the step, in the user's transaction db. The first time it runs
// fn and adds an event with the Headers of cause to the outbox. The event is [Step].Done with fn's
// payload, or [Step].Failed with the reason if fn returned a branch.Fail. For a repeated event it
// runs nothing and adds the same event again. If the step was undone, Do does nothing and returns
// nil.
//
// The service that begins the saga calls Do with an Event in which only Saga and Begun are set. If Begun
// is zero, the saga begins now; then repeat Do for less than driver.BarrierSpread, because a service that
// has forgotten the saga would take a later Begun for that of another one, and do its step again.
//
// After an error the transaction must be rolled back, as after barrier.DoIn. If fn refuses a step
// without a Failed event, or the definition lacks the step, the error is a Bug.
func (p Participant) Do(ctx context.Context, db driver.SQL, cause Event, fn func(ctx context.Context) (payload []byte, err error)) error {
	step, cause, ctx, err := p.call(ctx, "do step", cause, branch.Do)
	if err != nil {
		return err
	}
	ran := false
	a, err := barrier.DoIn(ctx, db, p.Barrier, []byte(nil), func(ctx context.Context) ([]byte, error) {
		ran = true
		return fn(ctx)
	})
	var refused *barrier.RefusedError
	switch {
	case err != nil:
		return err
	case errors.As(a.Refused, &refused) && step.Failed == "":
		return failure.Bug("do step", p.Step, "it was refused (%s), but has no Failed event", refused.Reason)
	case errors.As(a.Refused, &refused):
		return p.emit(ctx, db, cause, step.Failed, []byte(refused.Reason), ran)
	case errors.Is(a.Refused, barrier.ErrCancelled):
		return nil
	case a.Refused != nil:
		return a.Refused
	}
	return p.emit(ctx, db, cause, step.Done, a.Output, ran)
}

// Undo handles an event that undoes the saga, in the user's transaction db: see
// [Definition.Undoes]. If the step was done, it runs fn once, with the payload of [Step].Done.
// Otherwise it runs nothing and prevents the step later. Each time it adds [Step].Undone to the
// outbox. If a pivot was done, it returns [ErrPivot]. After an error the transaction must be rolled
// back, as after barrier.UndoIn.
func (p Participant) Undo(ctx context.Context, db driver.SQL, cause Event, fn func(ctx context.Context, done []byte) error) error {
	step, cause, ctx, err := p.call(ctx, "undo step", cause, branch.Undo)
	if err != nil {
		return err
	}
	ran := false
	err = barrier.UndoIn(ctx, db, p.Barrier, func(ctx context.Context, done *[]byte) error {
		if ran = true; step.Pivot {
			return &interlock.Error{Op: "undo step", Name: p.Step, Kind: interlock.Definite, Err: ErrPivot}
		}
		return fn(ctx, *done) // the payload is known: fn needs no remote call
	})
	if err != nil {
		return err
	}
	return p.emit(ctx, db, cause, step.Undone, nil, ran)
}

// call returns the step of p, the event with the time when its saga began, and the context for
// the step's barrier.
func (p Participant) call(ctx context.Context, op string, cause Event, o branch.Operation) (Step, Event, context.Context, error) {
	if err := cmp.Or(p.Definition.Validate(), driver.CheckName(op, "a saga's id", cause.Saga, MaxSaga)); err != nil {
		return Step{}, cause, ctx, err
	}
	i := slices.IndexFunc(p.Definition.Steps, func(s Step) bool { return s.Done == p.Step })
	if i < 0 {
		return Step{}, cause, ctx, failure.Bug(op, p.Step, "the definition %q has no step of that name", p.Definition.Name)
	}
	if cause.Begun.IsZero() {
		cause.Begun = time.Now()
	}
	call := branch.Call{Transaction: p.Definition.transaction(cause), Branch: p.Step, Operation: o, Attempt: 1, Begun: cause.Begun}
	return p.Definition.Steps[i], cause, branch.With(ctx, call), nil
}

// emit adds an event to the outbox. If the event happens now, its message has an id derived from
// the event. A repetition has another id: the first message may still wait in the outbox, and a
// receiver that compares ids must not drop the repetition.
func (p Participant) emit(ctx context.Context, db driver.SQL, cause Event, name string, payload []byte, now bool) error {
	e := Event{Saga: cause.Saga, Name: name, Begun: cause.Begun, Payload: payload, Headers: cause.Headers}
	if cause.Name != "" {
		e.Cause = p.Definition.ID(cause)
	}
	m := p.Definition.Message(e)
	if now {
		sum := sha256.Sum256([]byte(p.Definition.ID(e)))
		m.ID = hex.EncodeToString(sum[:16])
	}
	return p.Outbox.Add(ctx, db, m)
}
