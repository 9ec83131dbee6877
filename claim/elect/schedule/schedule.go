// Package schedule runs a job at its times, in one of many processes. It does
// not promise that a job runs exactly once: a process can die in the middle of
// one. [Missed] says what to do with such a tick, and with those that were not run in
// time. Nor does it keep a job that outlives its leadership from
// writing: tokens order the runs, and a guard refuses what comes too late.
//
//	jobs, err := schedule.New(elections, &schedule.Options{
//		Times: schedule.Every(time.Minute), Missed: schedule.RunLate,
//	})
//	...
//	err = jobs.Run(ctx, "rollup", func(ctx context.Context, tick schedule.Tick) error {
//		return fence.Tx(ctx, db, marks, tick.Term, "rollup", func(ctx context.Context, tx pgx.Tx) error {
//			return rollUp(ctx, tx, tick.At) // once for each tick.At
//		})
//	})
//
// The processes elect a leader, which runs the jobs one after the other. Before a
// job is run its tick is recorded under the leader's token ([elect.Term.Save]).
// So no two leaders begin one tick, for any failure of leases and clocks, unless
// RunLate asks for it.
//
// Ticks are read off the leader's wall clock. One that is ahead runs them early,
// and a later leader then waits until its own clock has caught up.
package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/observe"
)

// Timetable says when a job is due. All processes must have the same. A cron
// expression that was parsed elsewhere usually is one; its times are in UTC unless
// Options.Zone says otherwise, or the expression names a zone of its own.
type Timetable interface {
	// Next is the first tick after t; zero if there is none. It does not block,
	// and its answer depends on t alone.
	Next(t time.Time) time.Time
}

// Every is a tick at each multiple of d since the year 1, in UTC: every hour is
// on the hour. d must be above zero.
func Every(d time.Duration) Timetable { return every(d) }

type every time.Duration

func (e every) Next(t time.Time) time.Time {
	return t.UTC().Truncate(time.Duration(e)).Add(time.Duration(e))
}

// Missed says what to do with a tick whose job was not begun in time, because
// nobody led or because the job before it took too long, and of one whose leader
// died or was stopped after it had begun.
type Missed int

const (
	// Skip lets them be: each job is begun at most once, and in time.
	Skip Missed = iota
	// RunLate runs the job of every tick, however late, in order, except for those
	// beyond Options.MaxLate. One that was begun and is not known to have ended is
	// run again, with Tick.Begun: each is run at least once, and has to notice for
	// itself what an earlier run did. If it enters its guard before it looks, that
	// run cannot add to it any more.
	RunLate
	// Report calls Options.Report for them: each job is begun at most once, and
	// in time, and each tick that has no complete run is reported at least once.
	Report
)

// Tick is one time at which the job is due.
type Tick struct {
	At   time.Time   // which tick it is, in UTC
	Term *elect.Term // the leadership: its token is for the guard
	Late time.Duration
	// Begun: a leader has begun, or was about to begin, the job of this tick,
	// and is not known to have ended it.
	Begun bool
}

// DefaultMaxLate is how many missed ticks are made up for; see [Options].
const DefaultMaxLate = 100

// Options of a schedule. Times is required.
type Options struct {
	Times Timetable
	// Zone is the time zone whose wall clock Times is read off; nil means UTC. It is
	// for a timetable that has no zone of its own. Where the clock is put forward
	// over a tick, the job runs once at that moment, however many ticks are skipped.
	// What the clock shows twice is a tick the first time only. So for a job that
	// runs every hour or more often leave Zone nil.
	Zone   *time.Location
	Missed Missed // zero is Skip
	// MaxLate is how many missed ticks RunLate makes up for: of those that are due,
	// the newest MaxLate are run. Those before are skipped, and reported to
	// Hooks.Missed. 1 runs the job once, however long nobody led. 0 means
	// [DefaultMaxLate]; less means no bound.
	MaxLate int
	// Report receives each tick that was missed, if Missed is Report. It is
	// called by the leader between jobs; a tick is reported again if the leadership
	// ends before that is recorded.
	Report func(ctx context.Context, tick Tick)
	// Tolerance is how much later than its tick a job may begin without being
	// missed; 0 means half of the time to the next tick, at most a minute.
	Tolerance time.Duration
	// Hooks receive what happens; nil logs failures, see package observe.
	Hooks *Hooks
}

// Hooks receive what happens. Both may be nil. They are called synchronously and
// must return at once.
type Hooks struct {
	// Log receives jobs that failed and ticks that were missed if their hook is nil;
	// nil means slog.Default, [observe.Silent] nobody.
	Log *slog.Logger

	// Ran: a job has returned.
	Ran func(Ran)
	// Missed: a tick was skipped or reported, or is beyond Options.MaxLate.
	Missed func(Tick)
}

// WithDefaults returns h with hooks that log jobs that failed and ticks that were
// missed, where h has none. It accepts nil.
func (h *Hooks) WithDefaults() *Hooks {
	var r Hooks
	if h != nil {
		r = *h
	}
	observe.OnNil(&r.Ran, r.Log, slog.LevelWarn, func(e Ran) string {
		if e.Err == nil {
			return ""
		}
		return "job failed"
	})
	observe.OnNil(&r.Missed, r.Log, slog.LevelWarn, func(Tick) string { return "tick missed" })
	return &r
}

// LogValue describes a tick in a log.
func (t Tick) LogValue() slog.Value {
	attrs := []slog.Attr{slog.Time("at", t.At), slog.Duration("late", t.Late), slog.Bool("begun", t.Begun)}
	if t.Term != nil {
		attrs = append(attrs, slog.String("name", t.Term.Name()), slog.String("token", t.Term.Token().String()))
	}
	return slog.GroupValue(attrs...)
}

// Ran is the end of a job.
type Ran struct {
	Tick Tick
	Took time.Duration
	Err  error // what the job returned
}

func (o Options) validate() error {
	e, fixed := o.Times.(every)
	switch {
	case o.Times == nil:
		return errors.New("no Times are given, which are required")
	case fixed && e <= 0:
		return fmt.Errorf("a job cannot be due every %v", time.Duration(e))
	case o.Missed < Skip || o.Missed > Report:
		return fmt.Errorf("no value of Missed is %d", o.Missed)
	case o.Missed == Report && o.Report == nil:
		return errors.New("there is no Report to report missed ticks to")
	case o.Tolerance < 0:
		return errors.New("a negative Tolerance")
	}
	return nil
}

// Schedule runs jobs. It is safe for concurrent use.
type Schedule struct {
	election *elect.Election
	plan     plan
	report   func(context.Context, Tick)
	hooks    *Hooks
}

// New makes a schedule whose leaders are elected by e, which must have Values
// and which it does not own.
func New(e *elect.Election, o *Options) (*Schedule, error) {
	if o == nil {
		o = &Options{}
	}
	if err := o.validate(); err != nil {
		return nil, fail("make schedule", "", interlock.Bug, err)
	}
	s := &Schedule{election: e, report: o.Report, hooks: o.Hooks.WithDefaults(), plan: plan{
		times: o.Times, missed: o.Missed, maxLate: cmp.Or(o.MaxLate, DefaultMaxLate), tolerance: o.Tolerance}}
	if o.Zone != nil {
		s.plan.times = zoned{o.Times, o.Zone}
	}
	return s, nil
}

// between is the pause between two leaderships that ended in trouble.
var between = backoff.Policy{First: 100 * time.Millisecond, Max: 2 * time.Second}

// Run campaigns for the election of that name, and runs job at its ticks while
// this process leads, one run at a time. A leadership that is lost is campaigned
// for again. The first tick is the first one after the first leader ever began.
//
// The context that job gets ends with ctx and with the leadership. What job
// returns is reported to Hooks and changes nothing: trying again is for the job. Only
// a job that returns an error after its context has ended counts as one that has
// not ended.
//
// It blocks until ctx ends and returns its cause, nil when there are no more
// ticks, or the first error for which trying again would not help.
func (s *Schedule) Run(ctx context.Context, name string, job func(ctx context.Context, tick Tick) error) error {
	for n := 1; ; n++ {
		err := s.election.Run(ctx, name, func(ctx context.Context, term *elect.Term) error {
			n = 1
			return s.lead(ctx, term, job)
		})
		switch {
		case errors.Is(err, errOver):
			return nil
		case ctx.Err() != nil:
			return fail("schedule", name, interlock.Definite, context.Cause(ctx))
		case !worthAnother(err):
			return err
		}
		if !sleep(ctx, between.Delay(n, 0.5)) { // candidates queue, so that none disturbs another
			return fail("schedule", name, interlock.Definite, context.Cause(ctx))
		}
	}
}

// worthAnother reports whether a leadership ended in a way that another one need
// not end in.
func worthAnother(err error) bool {
	for _, cause := range []error{interlock.ErrExpired, interlock.ErrLost, interlock.ErrSessionEnded, interlock.ErrStaleToken} {
		if errors.Is(err, cause) {
			return true
		}
	}
	kind := interlock.Kind(err)
	return kind == interlock.Retryable || kind == interlock.Uncertain
}

func fail(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: kind, Err: err}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
