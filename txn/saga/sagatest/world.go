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

// A World is values by keys, on which fakes of participants are built. It is in memory,
// and no real system. The zero value is empty and ready. It is safe for concurrent use.
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

// Values is what a [World] contains, within an effect. A key without a value has the
// empty one.
type Values map[string]string

// Add adds to the number of a key, from 0, and gives the sum. It panics if the value is
// no number.
func (v Values) Add(key string, n int) int {
	return rehearsal.Values(v).Add(key, n)
}

// Set gives a key its value; an empty one removes it. Nothing guards it: it is for the
// scene, before the saga begins.
func (w *World) Set(key, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.values = w.draft()
	w.values[key] = value
}

// Get is the value of a key; empty if it has none.
func (w *World) Get(key string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.values[key]
}

// Snapshot is the values, one a line, in the order of their keys, for
// [Scene.Snapshot]. One that is empty or 0 is not shown: to Add it is the same as none.
func (w *World) Snapshot() any {
	w.mu.Lock()
	defer w.mu.Unlock()
	return rehearsal.Values(w.values).Text()
}

// errBehind is the refusal of a call that comes after its undo.
var errBehind = errors.New("it was undone before")

// Effect runs do once for the key of the call that ctx was made for, in an action of a
// saga: a repetition has the first one's output, or its [branch.Fail], and behind its
// undo the call is refused with one. If do returns an error nothing of what it did to
// the values stays. It may not block, nor use the world but by its argument.
func Effect[O any](ctx context.Context, w *World, do func(v Values) (O, error)) (output O, err error) {
	c := branch.From(ctx)
	if err := outside(c, branch.Do); err != nil {
		return output, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if before, is := w.answers[c.Key()]; is {
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

// Undo runs undo once for the key of the call that ctx was made for, in an undo of a
// saga, if the effect of its action was done; from then on that is refused. If undo
// returns an error nothing of what it did stays, and it can be called again. It may not
// block, nor use the world but by its argument.
func (w *World) Undo(ctx context.Context, undo func(v Values) error) error {
	c := branch.From(ctx)
	if err := outside(c, branch.Undo); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, is := w.answers[c.Key()]; is {
		return nil
	}
	action := c
	action.Operation = branch.Do
	if before, is := w.answers[action.Key()]; is && before.err == nil {
		values := w.draft()
		if err := undo(values); err != nil {
			return err
		}
		w.values = values
	}
	w.answer(c, reply{})
	return nil
}

// draft is the values, to be changed.
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

// outside reports that a call is not of the operation.
func outside(c branch.Call, want branch.Operation) error {
	if c.Operation == want {
		return nil
	}
	return &interlock.Error{Op: "have an effect", Name: c.Branch, Kind: interlock.Bug,
		Err: fmt.Errorf("the context is that of a %q, and has to be that of a %q of a saga", c.Operation, want)}
}
