package coordinator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
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
	r.Keep = cmp.Or(r.Keep, DefaultKeep)
	r.Every = cmp.Or(r.Every, 10*time.Minute)
	r.Margin = cmp.Or(r.Margin, 24*time.Hour)
	r.Slow = cmp.Or(r.Slow, 24*time.Hour)
	r.Batch = cmp.Or(r.Batch, 500)
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

// Margin returns Options.Retention.Margin: participants keep their records of transactions for at least
// that long.
func (c *Coordinator) Margin() time.Duration { return c.options.Retention.Margin }

// Keep returns Options.Retention.Keep: the journal has a transaction for at least that long after its end.
// Below zero it is never removed.
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
	defer c.mu.Unlock()
	for _, j := range append([]Job{{Name: "retention", Every: c.options.Retention.Every, Run: c.Retain}}, c.jobs...) {
		s.work.Go(func() { s.repeat(j) })
	}
}

// repeat runs a job until the server ends, first after a random part of its interval.
func (s *server) repeat(j Job) {
	wait := time.Duration(s.coordinator.options.Random() * float64(j.Every) / 4)
	for backoff.Sleep(s.ctx, wait) && s.checkClaim() == nil {
		if err := Contain(s.ctx, j.Name, "", j.Run); err != nil {
			s.failed("", failure.About(j.Name, "", err))
		}
		wait = j.Every + time.Duration(s.coordinator.options.Random()*float64(j.Every)/4)
	}
}

// Contain calls do in a goroutine of its own. A panic is a Bug, and so is the end of the goroutine.
func Contain(ctx context.Context, op, name string, do func(context.Context) error) error {
	err := failure.Bug(op, name, "%w", failure.ErrNoReturn)
	var work sync.WaitGroup
	work.Go(func() {
		defer func() {
			if r := recover(); r != nil {
				err = failure.Bug(op, name, "panic: %v", r)
			}
		}()
		err = do(ctx)
	})
	work.Wait()
	return err
}

// Retain applies Options.Retention once, for commands and tests: it removes ended transactions, then
// calls the sweeps with the mark. A failure of one part does not prevent the others. The hooks get the
// errors; the result is nil.
func (c *Coordinator) Retain(ctx context.Context) error {
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
	Emit(c.options.Hooks.Retained, e)
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
		if ctx.Err() == nil {
			Emit(c.options.Hooks.Swept, observe.CoordinatorSwept{Name: s.Name, Removed: swept.Removed, Overdue: swept.Overdue, Oldest: swept.Oldest,
				Took: c.options.Now().Sub(began), Err: err})
		}
	}
}

func runSweep(ctx context.Context, s Sweep, mark journal.Mark) (swept SweepResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, SweepTimeout)
	defer cancel()
	err = Contain(ctx, "sweep", s.Name, func(ctx context.Context) (err error) {
		swept, err = s.Run(ctx, mark)
		return err
	})
	return swept, err
}

// A Reconciliation summarizes a comparison of ended transactions with their participants.
type Reconciliation struct {
	Wrong    int       `json:"wrong"`    // effects that differ from the journal
	Repaired int       `json:"repaired"` // effects that differed, and were repaired
	Unknown  int       `json:"unknown"`  // effects that could not be determined
	Findings []Finding `json:"findings"` // the first hundred
}

// An Effect is the effect of a step or branch, according to the journal or a participant.
type Effect string

// EffectUnknown means that the effect could not be determined, as an empty Effect does.
const EffectUnknown Effect = "unsure"

// A Finding is a step or branch whose effect differs from the journal, or could not be
// determined.
type Finding struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	State    State  `json:"-"`                  // at the end of the transaction
	Step     string `json:"step,omitempty"`     // or branch; empty for the whole transaction
	Want     Effect `json:"want,omitempty"`     // according to the journal
	Got      Effect `json:"got,omitempty"`      // according to the participant, after a repair if there was one
	Repaired bool   `json:"repaired,omitempty"` // Got equals Want after a repair
	Refused  bool   `json:"-"`                  // the participant refuses the decided operation, by Err
	Err      error  `json:"-"`                  // of the check or the repair, or why the transaction cannot be read
	Error    string `json:"error,omitempty"`    // the text of Err, in a [Reconciliation]
}

const maxFindings = 100

// Add counts a finding, and keeps it if there is room.
func (r *Reconciliation) Add(f Finding) {
	switch {
	case f.Refused:
		f.Got = Effect("refused: " + f.Err.Error())
	case f.Err != nil:
		f.Error = f.Err.Error()
	}
	switch {
	case f.Repaired:
		r.Repaired++
	case f.Error != "" || f.Got == f.Want || f.Got == EffectUnknown:
		r.Unknown++
	default:
		r.Wrong++
	}
	if len(r.Findings) < maxFindings {
		f.Error = strings.ToValidUTF8(fmt.Sprintf("%.500s", f.Error), "\uFFFD")
		r.Findings = append(r.Findings, f)
	}
}

// A Reconciler compares the transactions of a protocol with their participants. It is for
// packages of protocols.
type Reconciler struct {
	Protocol string
	// Every is the interval in the background unless Options.Reconcile sets it; 0 means never,
	// and below zero never, whatever the value of Options.Reconcile.
	Every time.Duration
	// Find iterates over the findings of transactions that ended at or after a time. An error
	// without an ID ends it; one with an ID belongs to that transaction.
	Find func(ctx context.Context, since time.Time) iter.Seq2[Finding, error]
	// Found and Done are hooks; nil disables them.
	Found func(Finding)
	Done  func(observe.Reconciled)
}

// run collects the findings, and reports them to the hooks.
func (r Reconciler) run(ctx context.Context, now func() time.Time, since time.Time) (all Reconciliation, err error) {
	began := now()
	for f, problem := range r.Find(ctx, since) {
		if ctx.Err() != nil { // the finding may be only that
			return all, context.Cause(ctx)
		}
		if problem != nil && f.ID == "" {
			err = problem
			break
		}
		f.Err = errors.Join(problem, f.Err)
		Emit(r.Found, f)
		all.Add(f)
	}
	if ctx.Err() == nil {
		Emit(r.Done, observe.Reconciled{Since: since, Wrong: all.Wrong, Repaired: all.Repaired, Unknown: all.Unknown, Took: now().Sub(began), Err: err})
	}
	return all, err
}

// Reconcile calls check for the transactions that ended at or after since, by the store's clock,
// in the order of their ids. It yields the findings. A transaction that cannot be read or
// checked is yielded with its id and an error; an error without an id ends the iteration.
func (r Records[M, O]) Reconcile(ctx context.Context, j *journal.Journal, since time.Time,
	check func(ctx context.Context, t Transaction[M]) ([]Finding, error)) iter.Seq2[Finding, error] {
	return func(yield func(Finding, error) bool) {
		for t, err := range r.Ended(ctx, j, since) {
			if err != nil && t.Head.Transaction == "" {
				yield(Finding{}, err) // the last one
				return
			}
			id := t.Head.Transaction
			kind, _ := r.Type(t.Head.Type)
			var found []Finding
			if err == nil {
				found, err = check(ctx, t)
			}
			if err != nil && !yield(Finding{ID: id, Type: kind, Want: EffectUnknown, Got: EffectUnknown}, err) {
				return
			}
			for _, f := range found {
				if f.ID, f.Type, f.State = id, cmp.Or(f.Type, kind), r.State(t.State); !yield(f, nil) {
					return
				}
			}
		}
	}
}

// reconcileTimeout bounds one run.
const reconcileTimeout = 6 * time.Hour

// overlap is the time before the last run that is compared again, because clocks differ and recent ends
// may not be visible yet.
const overlap = 10 * time.Minute

// Reconciles registers a protocol for reconciliation: every Options.Reconcile in the background,
// of transactions that ended since the last run, and on request of a command; see
// [RequestReconciliation].
func (c *Coordinator) Reconciles(r Reconciler) error {
	every := c.options.Reconcile
	if every == 0 || r.Every < 0 {
		every = r.Every
	}
	if err := c.Handle(r.Protocol+reconcileSuffix, reconcileRequests{r, c.Now}); err != nil || every <= 0 {
		return err
	}
	since := c.options.Now().Add(-2 * every)
	return c.Background(Job{Name: "reconcile " + r.Protocol, Every: every, Run: func(ctx context.Context) error {
		began := c.options.Now()
		_, err := r.run(ctx, c.Now, since.Add(-overlap))
		if err == nil {
			since = began
		}
		return err
	}})
}

// reconcileSuffix marks the type of a transaction that requests a reconciliation.
const reconcileSuffix = "-reconcile"

type request struct {
	Since time.Time `json:"since"`
}

// RequestReconciliation requests a comparison of the transactions of a protocol that ended since
// a time. One of the services of the journal executes it. It returns the request's id for
// [ReconciliationOf].
func RequestReconciliation(ctx context.Context, j *journal.Journal, protocol string, since, now time.Time) (id string, err error) {
	data, err := json.Marshal(request{since.UTC()})
	if err != nil {
		return "", failure.About("request reconciliation", protocol, err)
	}
	id = "interlock.reconcile/" + rand.Text()
	_, err = j.Begin(ctx, id, protocol+reconcileSuffix+":request", now, journal.Entry{Kind: "begin", Data: data})
	return id, err
}

// ReconciliationOf returns the result of a request, or nil while it is running.
func ReconciliationOf(ctx context.Context, j *journal.Journal, id string) (*Reconciliation, error) {
	log, entries, err := j.Open(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case log == nil:
		return nil, &interlock.Error{Op: "read reconciliation", Name: id, Kind: interlock.Definite, Err: fmt.Errorf("there is no such request")}
	case log.Head().Ended.IsZero():
		return nil, nil
	}
	var r Reconciliation
	if err := json.Unmarshal(entries[len(entries)-1].Data, &r); err != nil {
		return nil, failure.About("read reconciliation", id, err)
	}
	return &r, nil
}

// reconcileRequests drives the requests of one protocol.
type reconcileRequests struct {
	Reconciler
	now func() time.Time
}

// Drive runs a reconciliation without a slot, and ends the request with the result. A run that failed
// is repeated after Options.Recheck.
func (a reconcileRequests) Drive(t *Turn) error {
	var req request
	if err := json.Unmarshal(t.Entries()[0].Data, &req); err != nil {
		return failure.Bug("reconcile", t.ID(), "its request is not JSON: %w", err)
	}
	var found Reconciliation
	err := t.Round(Task{Target: "interlock.reconcile", Timeout: reconcileTimeout,
		Call: branch.Call{Transaction: t.ID(), Branch: "reconcile", Operation: branch.Do, Attempt: 1},
		Do: func(ctx context.Context) (err error) {
			found, err = a.run(ctx, a.now, req.Since)
			return err
		}})[0]
	if err != nil {
		return err
	}
	data, err := json.Marshal(found)
	if err != nil {
		return failure.Bug("reconcile", t.ID(), "%w", err)
	}
	if len(data) > driver.MaxPayload {
		found.Findings = nil
		data, _ = json.Marshal(found)
	}
	return t.End(journal.Entry{Kind: "end", Data: data})
}
