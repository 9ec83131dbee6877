package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/report"
)

// key is the key under which the state is saved.
const key = "schedule"

var errOver = errors.New("there are no more ticks")

// leader is one leadership of a schedule.
type leader struct {
	*Schedule
	term  *elect.Term
	job   func(context.Context, Tick) error
	state state
}

// lead runs jobs until ctx ends, and returns its cause, or until an operation fails. ctx ends
// a moment after caller, the context of Run: no job begins in between.
func (s *Schedule) lead(caller, ctx context.Context, term *elect.Term, job func(context.Context, Tick) error) error {
	l := &leader{Schedule: s, term: term, job: job}
	if err := l.begin(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil && caller.Err() == nil {
		if err := l.step(ctx); err != nil {
			return err
		}
	}
	if ctx.Err() == nil {
		ctx = caller
	}
	return context.Cause(ctx)
}

// begin loads the state of the last leader and saves it again, so that no late write of a
// former leader can replace it.
func (l *leader) begin(ctx context.Context) error {
	text, err := l.term.Load(ctx, key)
	if err != nil {
		return err
	}
	l.state = state{Tick: now()}
	if text != nil {
		if l.state, err = decode(text); err != nil {
			return fail("schedule", l.term.Name(), interlock.Definite, err)
		}
	}
	return l.save(ctx, l.state)
}

// step performs the next action of the plan.
func (l *leader) step(ctx context.Context) error {
	do, tick, err := l.plan.next(l.state, now())
	tick.Term = l.term
	switch {
	case err != nil:
		return fail("schedule", l.term.Name(), interlock.Bug, err)
	case do == forever:
		return errOver
	case do == wait:
		backoff.Sleep(ctx, -max(tick.Late, -lookAgain))
		return nil
	case do == give:
		return l.giveUp(ctx, tick)
	case do == drop:
		return l.drop(ctx, tick)
	}
	return l.run(ctx, tick)
}

// run records the tick, then runs its job, then records that it has ended.
func (l *leader) run(ctx context.Context, tick Tick) error {
	if !tick.Begun { // else it is recorded already
		if err := l.save(ctx, l.plan.begun(tick)); err != nil {
			return err
		}
	}
	if ctx.Err() != nil || !l.term.Valid() {
		return nil // lead finds the reason
	}
	if tick.Late = max(tick.Late, now().Sub(tick.At)); l.plan.isMissed(tick) { // the record took too long
		return l.giveUp(ctx, tick)
	}
	began := boottime.Now()
	err := l.job(ctx, tick)
	report.Add(&l.reports, nil, l.hooks.Ran, Ran{Tick: tick, Took: boottime.Now().Sub(began), Err: err})
	if interrupted := err != nil && ctx.Err() != nil; interrupted || !l.state.Open {
		return nil
	}
	// The end of a run is recorded even if ctx has ended.
	return l.save(context.WithoutCancel(ctx), state{Tick: tick.At})
}

// batch is the maximum number of ticks that are dropped before that is recorded.
const batch = 1000

// giveUp skips or reports a tick and those after it that are also dropped.
func (l *leader) giveUp(ctx context.Context, tick Tick) error {
	l.awaitReports(ctx)
	next := l.state
	for n := 0; n < batch && ctx.Err() == nil; n++ {
		if l.plan.missed == Report {
			l.report(ctx, tick)
		}
		report.Add(&l.reports, nil, l.hooks.Missed, tick)
		next = state{Tick: tick.At}
		do, following, err := l.plan.next(next, now())
		if err != nil || do != give {
			break
		}
		tick.At, tick.Late, tick.Begun = following.At, following.Late, following.Begun
	}
	return l.save(ctx, next)
}

// drop skips ticks while at least MaxLate newer ones are due.
func (l *leader) drop(ctx context.Context, tick Tick) error {
	l.awaitReports(ctx)
	next, now := l.state, now()
	newer := l.plan.newer(tick.At, now)
	for n := 0; n < batch && ctx.Err() == nil && l.plan.isDue(newer, now); n++ {
		report.Add(&l.reports, nil, l.hooks.Missed, tick)
		next = state{Tick: tick.At}
		newer = l.plan.times.Next(newer)
		tick.At = l.plan.times.Next(tick.At).UTC()
		tick.Late = now.Sub(tick.At)
	}
	return l.save(ctx, next)
}

func (l *leader) save(ctx context.Context, s state) error {
	if err := l.term.Save(ctx, key, s.encode()); err != nil {
		return err
	}
	l.state = s
	return nil
}

// lookAgain is the interval for reading the wall clock while the next tick is far. The clock may
// be set, and timers do not count while the machine sleeps.
const lookAgain = 10 * time.Second

// now reads the clock of the ticks: the wall clock without the monotonic reading, which does
// not follow when the clock is set.
func now() time.Time { return time.Now().UTC().Round(0) }
