package tcctest

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

var errSilent = errors.New("tcctest: the coordinator cannot be asked")

// sweeps waits until the holds have expired, and sweeps them: first while the coordinator does not
// answer.
func (r *run) sweeps(ctx context.Context, m *tcc.Engine) {
	hold := r.Options.Hold
	if !pause(ctx, hold+hold/10) {
		return
	}
	before := r.See()
	_ = r.Sweep(ctx, func(context.Context, string, string) (tcc.Decision, error) { return "", errSilent })
	r.unchanged(before)
	const rounds = 3
	for range rounds {
		decision := tcc.Cancel
		r.sweeping = r.Sweep(ctx, func(ctx context.Context, id, branch string) (d tcc.Decision, err error) {
			d, err = m.Decide(ctx, id, branch)
			if d == tcc.Confirm {
				decision = d
			}
			return d, err
		})
		if r.LateConfirm || decision == tcc.Confirm {
			r.unchanged(before)
		}
		if !pause(ctx, hold/20) {
			return
		}
	}
}

// unchanged records unrequested changes of a sweep.
func (r *run) unchanged(before []string) {
	if r.freed == "" {
		r.freed = rehearsal.Diff(before, r.See())
	}
}

// pause waits, and returns false if ctx ends.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
