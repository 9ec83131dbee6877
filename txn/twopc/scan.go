package twopc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
)

// Watch scans at once and then every Options.Scan, until ctx ends, and returns the
// cause. A txn.Runtime runs it. Otherwise run it in every process that has defined
// participants: they do not disturb each other.
func (m *Engine) Watch(ctx context.Context) error {
	for {
		m.Scan(ctx)
		jitter := 0.9 + 0.2*m.coordinator.Random()
		if !sleep(ctx, time.Duration(float64(m.options.Scan)*jitter)) {
			return context.Cause(ctx)
		}
	}
}

// Scan lists once what each participant has in doubt, and finishes what is decided. A transaction
// without a decision for longer than Options.Patience is aborted, in the journal first. Errors
// are reported to the hooks and left to the next scan.
func (m *Engine) Scan(ctx context.Context) {
	var all sync.WaitGroup
	for name := range m.participants {
		all.Go(func() {
			found, err := m.inspect(ctx, name)
			m.gauge(name, found, err)
			acting, cancel := context.WithTimeout(ctx, max(m.options.Timeout, m.options.Scan))
			defer cancel()
			for _, d := range found {
				m.finish(acting, name, d)
			}
		})
	}
	all.Wait()
}

// finish does what the verdict says.
func (m *Engine) finish(ctx context.Context, name string, found InDoubt) {
	v := verdict(found.Verdict)
	err := found.Err
	if v == presume {
		v, err = m.presumed(ctx, found)
	}
	if v == leave {
		return
	}
	if err == nil {
		err = m.carryOut(ctx, name, found, v)
	}
	if f := m.options.Hooks.Orphan; f != nil {
		f(observe.TwoPCOrphan{Transaction: found.XID.Transaction, Participant: name, Age: found.Age, Verdict: string(v), Err: err})
	}
}

// presumed is what is to be done once an abort stands in the journal, or what came
// before it.
func (m *Engine) presumed(ctx context.Context, found InDoubt) (verdict, error) {
	there, err := m.presume(ctx, found.run, decided{Run: found.run.sign,
		Reason: "branch " + found.XID.Branch + " was in doubt for " + found.Age.Round(time.Millisecond).String() + ", and nobody had decided"})
	if err != nil {
		return blocked, err
	}
	return m.judge(found, there), nil
}

// carryOut finishes a branch.
func (m *Engine) carryOut(ctx context.Context, name string, found InDoubt, v verdict) error {
	if v != commit && v != rollBack {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.options.Timeout)
	defer cancel()
	r, x, c := found.run, found.XID, branch.Call{Attempt: 1}
	if v == commit {
		return m.participants[name].Commit(calling(ctx, c, r, name, branch.Commit), x)
	}
	err := m.participants[name].Rollback(calling(ctx, c, r, name, branch.Rollback), x)
	if errors.Is(err, driver.ErrHeuristic) {
		m.found(ctx, r, name, err)
	}
	return err
}

// gauge tells how a participant stands.
func (m *Engine) gauge(name string, found []InDoubt, err error) {
	f := m.options.Hooks.Scanned
	if f == nil {
		return
	}
	e := observe.TwoPCScanned{Participant: name, InDoubt: len(found), Err: err}
	for _, d := range found {
		e.Oldest = max(e.Oldest, d.Age)
		if d.Verdict == string(blocked) {
			e.Blocked++
			e.BlockedFor = max(e.BlockedFor, d.BlockedFor)
		}
	}
	f(e)
}
