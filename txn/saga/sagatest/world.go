package sagatest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
)

// A World has the state of fakes of participants: values by keys, in memory. The zero value is
// empty and ready. It is safe for concurrent use.
type World struct {
	mu      sync.Mutex
	values  Values
	answers map[string]reply // by the keys of calls
}

// reply is the final outcome of a call of a key.
type reply struct {
	output any
	err    error
}

// Values has the values of a [World], within an effect. A missing value is empty.
type Values map[string]string

// Add adds to the number of a key, from 0, and returns the sum. It panics if the value is not
// a number.
func (v Values) Add(key string, n int) int {
	return rehearsal.Values(v).Add(key, n)
}

// Set sets the value of a key; an empty one removes it. It has no guard: use it before the
// saga begins.
func (w *World) Set(key, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.values = w.draft()
	w.values[key] = value
}

// Get returns the value of a key, or "".
func (w *World) Get(key string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.values[key]
}

// Snapshot returns the values, one a line, in the order of their keys, for [Scene.Snapshot]. It
// omits those that are empty or 0, which Add does not distinguish from missing ones.
func (w *World) Snapshot() any {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rehearsal.Values(w.values).Text()
}

// errBehind is the refusal of a call that arrives after its undo.
var errBehind = errors.New("it was undone before")

// Effect runs do once for the key of the call that ctx belongs to, in an action of a saga. A
// repeated call has the first one's output or [branch.Fail], and a call after its undo is refused
// with a Fail. If do returns an error its changes are discarded. do must not block, and must use
// the world by its argument only.
func Effect[O any](ctx context.Context, w *World, do func(v Values) (O, error)) (output O, err error) {
	c := branch.From(ctx)
	if err := outside(c, branch.Do); err != nil {
		return output, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if before, known := w.answers[c.Key()]; known {
		output, _ = before.output.(O)
		return output, before.err
	}
	if _, undone := w.answers[undoOf(c).Key()]; undone {
		return output, branch.Fail(errBehind)
	}
	values := w.draft()
	output, err = do(values)
	class, _ := branch.ClassOf(err)
	switch {
	case err == nil:
		w.values = values
		w.answer(c, reply{output: output})
	case class == branch.ClassFail:
		w.answer(c, reply{err: err})
	}
	return output, err
}

// Undo runs undo once for the key of the call that ctx belongs to, in an undo of a saga. If the
// action had no effect, undo does not run. Later calls of the action are refused. If undo returns an
// error its changes are discarded, and it can be called again. undo must not block, and must use
// the world by its argument only.
func (w *World) Undo(ctx context.Context, undo func(v Values) error) error {
	c := branch.From(ctx)
	if err := outside(c, branch.Undo); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.answers[c.Key()]; known {
		return nil
	}
	action := c
	action.Operation = branch.Do
	if before, known := w.answers[action.Key()]; known && before.err == nil {
		values := w.draft()
		if err := undo(values); err != nil {
			return err
		}
		w.values = values
	}
	w.answer(c, reply{})
	return nil
}

// draft returns a copy of the values that can be changed.
func (w *World) draft() Values { return Values(rehearsal.Values(w.values).Draft()) }

func (w *World) answer(c branch.Call, r reply) {
	if w.answers == nil {
		w.answers = map[string]reply{}
	}
	w.answers[c.Key()] = r
}

func undoOf(c branch.Call) branch.Call {
	c.Operation = branch.Undo
	return c
}

// outside returns an error if a call has another operation.
func outside(c branch.Call, want branch.Operation) error {
	if c.Operation == want {
		return nil
	}
	return &interlock.Error{Op: "have an effect", Name: c.Branch, Kind: interlock.Bug,
		Err: fmt.Errorf("the context is that of a %q, and that of a %q of a saga is required", c.Operation, want)}
}
