// Package schedule runs a job at its times, in one of many processes. It does not promise that
// a job runs exactly once: a process can crash during a run. [Missed] selects what to do with
// such a tick, and with ticks that were not run in time. Nor can it stop the writes of a job
// that outlives its leadership: tokens order the runs, and a guard rejects stale ones.
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
// The processes elect a leader, which runs the jobs one after the other. Before a job runs, the
// leader records its tick under its token ([elect.Term.Save]). So no two leaders begin the same
// tick, whatever happens to leases and clocks, unless Missed is RunLate.
//
// The leader reads ticks from its wall clock. If its clock is ahead, it runs jobs early, and a
// later leader waits until its own clock has caught up.
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
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// Timetable defines when a job is due. All processes must use the same. The type of a parsed
// cron expression usually implements it. Its times are in UTC, unless Options.Zone or the
// expression names a time zone.
type Timetable interface {
	// Next returns the first tick after t; zero if there is none. It does not block, and its
	// result depends on t alone.
	Next(t time.Time) time.Time
}

// Every returns a timetable with a tick at each multiple of d since the year 1, in UTC. Every
// hour is on the hour. d must be above zero.
func Every(d time.Duration) Timetable { return every(d) }

type every time.Duration

func (e every) Next(t time.Time) time.Time {
	return t.UTC().Truncate(time.Duration(e)).Add(time.Duration(e))
}

// Missed selects what to do with a missed tick. A tick is missed if its job did not begin in
// time, because there was no leader or the previous job took too long. It is also missed if its
// leader crashed or was stopped after the job had begun.
type Missed int

const (
	// Skip drops missed ticks: each job begins at most once, and in time.
	Skip Missed = iota
	// RunLate runs the job of every tick, however late, in order, up to Options.MaxLate. If a
	// job was begun and is not known to have ended, it runs again with Tick.Begun set. So each
	// job runs at least once, and must detect what an earlier run did. If it enters its guard
	// before it reads, the earlier run can write no more.
	RunLate
	// Report calls Options.Report for missed ticks. Each job begins at most once, and in time.
	// Each tick without a complete run is reported at least once.
	Report
)

// Tick is one time at which the job is due.
type Tick struct {
	At   time.Time   // when the job is due, in UTC
	Term *elect.Term // the leadership; pass it to the guard
	Late time.Duration
	// Begun means that a leader has begun, or was about to begin, the job of this tick, and
	// that its end is not recorded.
	Begun bool
}

// DefaultMaxLate is the default of Options.MaxLate; see [Options].
const DefaultMaxLate = 100

// Options configure a schedule. Times is required.
type Options struct {
	Times Timetable
	// Zone is the time zone of Times; nil means UTC. It is for a timetable without a time zone
	// of its own. If the clock is put forward over a tick, the job runs once at that moment,
	// however many ticks are skipped. If the clock shows a time twice, only the first is a
	// tick. So leave Zone nil for a job that runs every hour or more often.
	Zone   *time.Location
	Missed Missed // zero is Skip
	// MaxLate is how many missed ticks RunLate runs late: the newest MaxLate of those that are
	// due. It skips older ones and reports them to Hooks.Missed. 1 runs the job once, however
	// long there was no leader. 0 means [DefaultMaxLate]. A negative number means no bound.
	MaxLate int
	// Report receives each missed tick, if Missed is Report. The leader calls it between jobs.
	// It reports a tick again if the leadership ends before the report is recorded.
	Report func(ctx context.Context, tick Tick)
	// Tolerance is the maximum delay with which a job may begin without being missed. 0 means
	// half of the time to the next tick, at most a minute.
	Tolerance time.Duration
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *Hooks
}

// Hooks receive the events of a schedule. Both may be nil. A goroutine of the schedule calls them, one
// at a time, in the order of the events. Hooks should return at once. A hook that blocks delays later
// events: at most 65,536 wait, further ones are dropped. The leader waits up to a second for them before
// it skips ticks, and so does the end of Run.
type Hooks struct {
	// Log receives failed jobs and missed ticks if their hook is nil; nil means slog.Default,
	// and [observe.Silent] disables logging.
	Log *slog.Logger

	// Ran reports that a job has returned.
	Ran func(Ran)
	// Missed reports a tick that was skipped or reported, or is beyond Options.MaxLate.
	Missed func(Tick)
}

// WithDefaults returns h with hooks that log failed jobs and missed ticks, where h has none. It
// accepts nil.
func (h *Hooks) WithDefaults() *Hooks {
	r := *cmp.Or(h, &Hooks{})
	observe.OnNil(&r.Ran, r.Log, slog.LevelWarn, func(e Ran) string {
		if e.Err == nil {
			return ""
		}
		return "job failed"
	})
	observe.OnNil(&r.Missed, r.Log, slog.LevelWarn, func(Tick) string { return "tick missed" })
	return &r
}

// LogValue returns the tick as a group of log attributes.
func (t Tick) LogValue() slog.Value {
	attrs := []slog.Attr{slog.Time("at", t.At), slog.Duration("late", t.Late), slog.Bool("begun", t.Begun)}
	if t.Term != nil {
		attrs = append(attrs, slog.String("name", t.Term.Name()), slog.String("token", t.Term.Token().String()))
	}
	return slog.GroupValue(attrs...)
}

// Ran reports the end of a job.
type Ran struct {
	Tick Tick
	Took time.Duration
	Err  error // the error of the job
}

func (o Options) validate() error {
	e, fixed := o.Times.(every)
	switch {
	case o.Times == nil:
		return errors.New("the option Times is required")
	case fixed && e <= 0:
		return fmt.Errorf("a job cannot be due every %v", time.Duration(e))
	case o.Missed < Skip || o.Missed > Report:
		return fmt.Errorf("the option Missed is %d, which is not defined", o.Missed)
	case o.Missed == Report && o.Report == nil:
		return errors.New("Missed is Report, but the option Report is nil")
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
	reports  report.Queue
}

// New returns a schedule whose leaders are elected by e. e must have Values; the schedule does
// not own it.
func New(e *elect.Election, o *Options) (*Schedule, error) {
	o = cmp.Or(o, &Options{})
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

// between is the delay after a leadership that ended with an error.
var between = backoff.Policy{First: 100 * time.Millisecond, Max: 2 * time.Second}

// Run campaigns for the election name, and runs job at its ticks while this process leads, one
// run at a time. If it loses the leadership, it campaigns again. The first tick is the first
// one after the first leader ever began.
//
// The context of job ends with ctx and with the leadership. Run reports the error of job to
// Hooks and otherwise ignores it: a job must retry by itself. A run counts as not ended only if
// job returns an error after its context has ended.
//
// Run blocks until ctx ends and returns its cause. It returns nil if there are no more ticks,
// and the first error that a retry cannot fix.
func (s *Schedule) Run(ctx context.Context, name string, job func(ctx context.Context, tick Tick) error) error {
	defer s.awaitReports(context.WithoutCancel(ctx))
	for n := 1; ; n++ {
		err := s.election.Run(ctx, name, func(leading context.Context, term *elect.Term) error {
			n = 1
			return s.lead(ctx, leading, term, job)
		})
		switch {
		case errors.Is(err, errOver):
			return nil
		case ctx.Err() != nil:
			return fail("schedule", name, interlock.Definite, context.Cause(ctx))
		case !worthAnother(err):
			return err
		}
		if !backoff.Sleep(ctx, between.Delay(n, 0.5)) { // candidates queue, so that none disturbs another
			return fail("schedule", name, interlock.Definite, context.Cause(ctx))
		}
	}
}

// awaitReports waits up to a second until the hooks have received all events, so that few are dropped.
func (s *Schedule) awaitReports(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = s.reports.Wait(ctx)
}

// worthAnother reports whether to campaign again after a leadership that ended with err.
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
