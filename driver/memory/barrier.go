package memory

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// A Business runs in a [Barrier], under its mutex. result is the result of the first call, if known
// is true. A first call refuses with a [Refusal]; any other error is a failure. A Business must not
// call the barrier.
type Business func(result []byte, known bool) ([]byte, error)

// A Refusal is the reason of a business that refuses.
type Refusal string

// Error returns the reason.
func (r Refusal) Error() string { return string(r) }

// Barrier records the calls of branches in memory. It is the executable specification
// of driver.Barrier: each call is one step under a mutex, by this process's clock.
// Its records end with the process.
type Barrier struct {
	mu       sync.Mutex
	branches map[branchKey]*remembered
	mark     time.Time
	excepted []string // transactions, by the mark
}

type branchKey struct{ transaction, branch, step string }

// remembered is the record of a branch.
type remembered struct {
	state  driver.BarrierState
	hash   []byte // of the first call; empty before it
	result []byte
	begun  time.Time // as the first call stated it
}

var _ driver.Barrier[Business] = (*Barrier)(nil)

// NewBarrier returns an empty barrier. All users of it share its records.
func NewBarrier() *Barrier { return &Barrier{branches: map[branchKey]*remembered{}} }

// Call decides a call and runs business if it is due; see driver.Barrier.
func (b *Barrier) Call(ctx context.Context, c driver.BarrierCall, business Business) (driver.BarrierAnswer, error) {
	if err := c.Check(); err != nil {
		return driver.BarrierAnswer{}, err
	}
	if ctx.Err() != nil {
		return driver.BarrierAnswer{}, fail.Unsent(ctx, "pass barrier", c.Transaction)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.Begun.UnixMilli() < b.mark.UnixMilli() && !slices.Contains(b.excepted, c.Transaction) {
		return driver.BarrierAnswer{Outcome: driver.BarrierForgotten}, nil
	}
	key := branchKey{c.Transaction, c.Branch, c.Step}
	r := b.branches[key]
	if r == nil {
		r = &remembered{begun: c.Begun}
	}
	if r.other(c) {
		return driver.BarrierAnswer{Outcome: driver.BarrierOther, State: r.state}, nil
	}
	move := r.state.Meet(c.Phase)
	if move.Outcome == driver.BarrierRun {
		b.branches[key] = r
		return r.run(c, move.Next, business)
	}
	if move.Next != r.state {
		b.branches[key], r.state = r, move.Next
	}
	return r.answer(c, move.Outcome), nil
}

// other reports whether c differs from the recorded first call.
func (r *remembered) other(c driver.BarrierCall) bool {
	return c.Phase == driver.BarrierFirst && len(r.hash) > 0 && r.state != driver.BarrierUndone && !bytes.Equal(r.hash, c.Hash)
}

// run runs the business. A first call that panics has failed.
func (r *remembered) run(c driver.BarrierCall, next driver.BarrierState, business Business) (driver.BarrierAnswer, error) {
	before, first := r.state, c.Phase == driver.BarrierFirst
	known := before == driver.BarrierDone
	if first {
		r.state, r.hash = driver.BarrierStarted, bytes.Clone(c.Hash)
	}
	result, err := business(bytes.Clone(r.result), known)
	var refusal Refusal
	switch {
	case first && errors.As(err, &refusal):
		r.state, r.result = before.Refuse(), []byte(refusal)
		answer := r.answer(c, driver.BarrierSaysNo)
		answer.Ran = true
		return answer, nil
	case err != nil:
		return driver.BarrierAnswer{}, fail.New("pass barrier", c.Transaction, interlock.Uncertain,
			fmt.Errorf("the business of %s failed; its earlier effects remain: %w", c.Phase, err))
	case first && len(result) > driver.MaxBarrierResult:
		r.state, r.result = driver.BarrierDoubted, fmt.Appendf(nil, "its result has %d bytes, at most %d are stored", len(result), driver.MaxBarrierResult)
		return driver.BarrierAnswer{}, fail.New("pass barrier", c.Transaction, interlock.Uncertain,
			fmt.Errorf("the business of %s failed; its effects remain: %s", c.Phase, r.result))
	case first:
		r.result = bytes.Clone(result)
	}
	r.state = next
	answer := r.answer(c, driver.BarrierIsDone)
	answer.Ran = true
	return answer, nil
}

func (r *remembered) answer(c driver.BarrierCall, o driver.BarrierOutcome) driver.BarrierAnswer {
	a := driver.BarrierAnswer{Outcome: o, State: r.state}
	if c.Phase == driver.BarrierFirst && (o == driver.BarrierIsDone || o == driver.BarrierSaysNo) {
		a.Result = bytes.Clone(r.result)
	}
	return a
}

// Forget raises the mark and removes branches far enough below it; see driver.Barrier.
func (b *Barrier) Forget(ctx context.Context, mark time.Time, except []string, limit int) (int, error) {
	if err := driver.CheckBarrierForget(mark, except, limit); err != nil {
		return 0, err
	}
	switch {
	case ctx.Err() != nil:
		return 0, fail.Unsent(ctx, "forget branches", "")
	case time.Until(mark) > interlock.MaxAhead:
		return 0, fail.New("forget branches", "", interlock.Definite,
			fmt.Errorf("the mark %v is more than %v ahead of the clock", mark, interlock.MaxAhead))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if mark.UnixMilli() > b.mark.UnixMilli() {
		b.mark, b.excepted = mark, slices.Clone(except)
	}
	kept := b.mark.Add(-driver.BarrierSpread).UnixMilli()
	var below []branchKey
	for key, r := range b.branches {
		if r.begun.UnixMilli() < kept && !slices.Contains(b.excepted, key.transaction) {
			below = append(below, key)
		}
	}
	slices.SortFunc(below, func(x, y branchKey) int {
		return cmp.Compare(b.branches[x].begun.UnixMilli(), b.branches[y].begun.UnixMilli())
	})
	below = below[:min(len(below), limit)]
	for _, key := range below {
		delete(b.branches, key)
	}
	return len(below), nil
}
