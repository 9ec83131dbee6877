package coordinator

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Retention sets what coordinators remove. The zero value works. Only the owner of shard 0
// removes anything.
type Retention struct {
	// Keep is the time between the end of a transaction and its removal, by the clocks of the
	// coordinator and of the store; 0 means [DefaultKeep], below zero no removal. Until then a
	// repeated start attaches to it, and a branch in doubt finds its decision.
	Keep time.Duration
	// Every is the interval; 0 means 10 minutes. Each pause is longer by a random part of up
	// to a quarter.
	Every time.Duration
	// Batch bounds the transactions that one request removes; 0 means 500.
	Batch int
	// Margin is the margin of [journal.Journal.Mark], for Sweeps; 0 means a day.
	Margin time.Duration
	// Slow is the age from which an unfinished transaction, such as a dead letter, does not
	// prevent participants from forgetting younger ones; 0 means a day, below zero never.
	Slow time.Duration
	// Sweeps are called one after the other in each interval, with the mark.
	Sweeps []Sweep
}

// DefaultKeep is one day longer than two-phase commit relies on decisions, so that clocks may
// differ.
const DefaultKeep = 8 * 24 * time.Hour

// A Sweep removes records outside the journal that are no longer needed: by
// barrier.ForgetExcept on a participant's table, Forget of a driver.Barrier or a tcc.Table, a
// reaper's round, or [SweepAt].
type Sweep struct {
	Name string
	// Run removes records, and returns their number. Its context ends after [SweepTimeout], or
	// when the shard is lost: another process may sweep at the same time.
	Run func(ctx context.Context, m journal.Mark) (SweepResult, error)
}

// SweepAt sends the mark to a participant over HTTP. The participant must serve it, in Go by
// [branchhttp.ForgetHandler], at a separate address or that of its calls.
func SweepAt(name string, caller branchhttp.Caller, url string) Sweep {
	return Sweep{Name: name, Run: func(ctx context.Context, m journal.Mark) (SweepResult, error) {
		removed, err := caller.Forget(ctx, url, branchhttp.Mark{Before: m.Time, Except: m.Except})
		return SweepResult{Removed: removed}, err
	}}
}

// SweepBy returns a [Sweep] that needs no mark, such as the Sweep method of an
// idempotency.Reaper.
func SweepBy(name string, run func(ctx context.Context) (removed, overdue int, err error)) Sweep {
	if run == nil {
		return Sweep{Name: name} // New rejects it
	}
	return Sweep{Name: name, Run: func(ctx context.Context, _ journal.Mark) (s SweepResult, err error) {
		s.Removed, s.Overdue, err = run(ctx)
		return s, err
	}}
}

// SweepTimeout bounds each call of a [Sweep].
const SweepTimeout = 5 * time.Minute

// SweepResult is the result of a [Sweep].
type SweepResult struct {
	Removed int
	Overdue int           // not removed, although they should have ended
	Oldest  time.Duration // time since the first of them should have ended
}

func (r Retention) resolve() (Retention, error) {
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
	}{{&r.Keep, DefaultKeep}, {&r.Every, 10 * time.Minute}, {&r.Margin, 24 * time.Hour}, {&r.Slow, 24 * time.Hour}} {
		if *d.value == 0 {
			*d.value = d.byDefault
		}
	}
	if r.Batch == 0 {
		r.Batch = 500
	}
	if r.Batch < 0 || r.Every < 0 || r.Margin < 0 {
		return r, failure.Bug("make coordinator", "", "Retention: Batch %d, Every %v and Margin %v must not be below zero", r.Batch, r.Every, r.Margin)
	}
	for _, s := range r.Sweeps {
		if s.Name == "" || s.Run == nil {
			return r, failure.Bug("make coordinator", s.Name, "Retention: a sweep needs a name and a function")
		}
	}
	return r, nil
}

// Keep returns Options.Retention.Keep; below zero means for ever.
func (c *Coordinator) Keep() time.Duration { return c.options.Retention.Keep }

// A Job runs periodically in one of the processes that serve a journal.
type Job struct {
	Name  string
	Every time.Duration // each pause is longer by a random part of up to a quarter
	// Run runs the job once. Its context ends when another process may run it.
	Run func(ctx context.Context) error
}

// Background registers a job that runs while this coordinator owns shard 0. Registering it after
// Serve is a Bug. Its errors are reported as observe.CoordinatorFailed.
func (c *Coordinator) Background(j Job) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case j.Every <= 0 || j.Run == nil:
		return failure.Bug("add background job", j.Name, "an interval above zero and a function are required")
	case len(c.servers) > 0:
		return failure.Bug("add background job", j.Name, "the coordinator serves already")
	}
	c.jobs = append(c.jobs, j)
	return nil
}

// background starts the jobs if the server is that of shard 0. They end before it.
func (s *server) background() {
	if s.shard.Number() != 0 {
		return
	}
	c := s.coordinator
	c.mu.Lock()
	jobs := append([]Job{{Name: "retention", Every: c.options.Retention.Every, Run: c.retain}}, c.jobs...)
	c.mu.Unlock() // take locks s.mu before it
	for _, j := range jobs {
		s.mu.Lock()
		s.running++ // close waits for it
		s.mu.Unlock()
		go func() {
			defer s.turnEnded()
			s.repeat(j)
		}()
	}
}

// repeat runs a job until the server ends, first after a random part of its interval.
func (s *server) repeat(j Job) {
	wait := time.Duration(s.coordinator.options.Random() * float64(j.Every) / 4)
	for s.sleep(wait) && s.checkClaim() == nil {
		if err := s.guarded(j); err != nil {
			s.failed("", failure.About(j.Name, "", err))
		}
		wait = j.Every + time.Duration(s.coordinator.options.Random()*float64(j.Every)/4)
	}
}

// guarded runs a job once, and returns a panic as an error.
func (s *server) guarded(j Job) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = failure.Bug(j.Name, "", "panic: %v", r)
		}
	}()
	return j.Run(s.ctx)
}

// Retain applies Options.Retention once, for commands and tests.
func (c *Coordinator) Retain(ctx context.Context) error { return c.retain(ctx) }

// retain removes ended transactions, then calls the sweeps with the mark. A failure of one
// part does not prevent the others.
func (c *Coordinator) retain(ctx context.Context) error {
	r, e := c.options.Retention, observe.CoordinatorRetained{}
	began := c.options.Now()
	if r.Keep > 0 {
		e.Forgotten, e.Err = c.journal.ForgetAll(ctx, began.Add(-r.Keep), r.Batch)
	}
	mark, err := c.journal.Mark(ctx, c.options.Now(), r.Margin, max(0, r.Slow))
	if err == nil {
		e.Unfinished, e.Excepted = mark.Unfinished, len(mark.Except)
		if mark.Unfinished > 0 {
			e.Oldest = max(0, began.Sub(mark.Oldest))
		}
		e.Unscheduled, err = c.journal.Unscheduled(ctx)
	}
	if e.Err == nil {
		e.Err = err
	}
	if e.Took = c.options.Now().Sub(began); ctx.Err() != nil {
		return nil
	}
	if f := c.options.Hooks.Retained; f != nil {
		f(e)
	}
	if err == nil {
		c.sweep(ctx, mark)
	}
	return nil
}

// sweep calls all sweeps with a mark.
func (c *Coordinator) sweep(ctx context.Context, mark journal.Mark) {
	for _, s := range c.options.Retention.Sweeps {
		if ctx.Err() != nil {
			return
		}
		began := c.options.Now()
		swept, err := runSweep(ctx, s, mark)
		if f := c.options.Hooks.Swept; f != nil && ctx.Err() == nil {
			f(observe.CoordinatorSwept{Name: s.Name, Removed: swept.Removed, Overdue: swept.Overdue, Oldest: swept.Oldest,
				Took: c.options.Now().Sub(began), Err: err})
		}
	}
}

func runSweep(ctx context.Context, s Sweep, mark journal.Mark) (swept SweepResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, SweepTimeout)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			err = failure.Bug("sweep", s.Name, "panic: %v", r)
		}
	}()
	return s.Run(ctx, mark)
}
