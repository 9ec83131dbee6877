package twopc

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
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

// An InDoubt is a branch that has voted yes and waits, as a scan finds it.
type InDoubt struct {
	XID driver.XID
	// Age is since it was prepared, by the participant's clock, or since this engine
	// found it, whichever is longer.
	Age time.Duration
	// Verdict is what the journal says is to be done with it: "commit", "roll back",
	// "decide to abort", or "leave" while somebody may be at work on it; "blocked" while
	// the journal does not answer; "too old" and "foreign" are for a person, see
	// [Engine.Settle].
	Verdict    string
	BlockedFor time.Duration // since the journal was first found not to answer for it; 0 if it does
	Err        error         // of the journal, if it is blocked or foreign

	run run // empty if it is foreign
}

// scan is what is remembered from one scan to the next.
type scan struct {
	seen    map[place]time.Time // first
	blocked map[place]time.Time // since when
}

// place is a branch at the participant that lists it.
type place struct {
	participant string
	xid         driver.XID
}

func newScan() scan { return scan{seen: map[place]time.Time{}, blocked: map[place]time.Time{}} }

// InDoubt lists the branches in doubt at all participants, in the order of their names, with what
// an [Engine.Scan] would do. It changes nothing. The error joins those of participants that could
// not be asked; the branches of the others are listed.
func (m *Engine) InDoubt(ctx context.Context) ([]InDoubt, error) {
	var all []InDoubt
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(m.participants)) {
		found, err := m.inspect(ctx, name)
		all, errs = append(all, found...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// inspect asks one participant, and judges what it has in doubt.
func (m *Engine) inspect(ctx context.Context, name string) ([]InDoubt, error) {
	listing, cancel := context.WithTimeout(ctx, m.options.Timeout)
	defer cancel()
	doubts, err := m.participants[name].InDoubt(listing)
	if err != nil {
		return nil, err
	}
	var found []InDoubt
	read := m.reader(ctx)
	for _, d := range doubts {
		if d.XID.Branch != name && m.participants[d.XID.Branch] != nil {
			continue // two names of one namespace: the other one finds it
		}
		found = append(found, m.look(read, name, d))
	}
	m.forget(name, found)
	return found, nil
}

// reader reads transactions, each in a bounded time, until the journal has once not
// answered: nobody waits for that again and again.
func (m *Engine) reader(ctx context.Context) func(key string) (*machine, error) {
	var gone error
	return func(key string) (*machine, error) {
		if gone != nil {
			return nil, gone
		}
		reading, cancel := context.WithTimeout(ctx, m.options.Timeout)
		defer cancel()
		there, err := m.read(reading, key)
		if err != nil && interlock.Kind(err) != interlock.Bug {
			gone = err
		}
		return there, err
	}
}

// look judges one branch by what the journal says.
func (m *Engine) look(read func(key string) (*machine, error), name string, d driver.InDoubt) InDoubt {
	now, at := m.coordinator.Now(), place{name, d.XID}
	found := InDoubt{XID: d.XID, Age: now.Sub(m.noted(m.scan.seen, at, now))}
	if !d.Since.IsZero() {
		found.Age = max(found.Age, now.Sub(d.Since))
	}
	r, err := parse(d.XID.Transaction)
	if err != nil || d.XID.Branch != name {
		found.Verdict, found.Err = string(foreign), err
		return found
	}
	found.run = r
	there, err := read(r.key)
	if errors.Is(err, ErrMismatch) {
		found.Verdict, found.Err = string(foreign), err
		return found
	}
	if err != nil {
		found.Verdict, found.Err = string(blocked), err
		found.BlockedFor = now.Sub(m.noted(m.scan.blocked, at, now))
		return found
	}
	m.unblock(at)
	found.Verdict = string(m.judge(found, there))
	return found
}

// judge is what is to be done with a branch that was found.
func (m *Engine) judge(found InDoubt, there *machine) verdict {
	r := found.run
	d := doubt{run: r, branch: found.XID.Branch, age: found.Age, life: m.coordinator.Now().Sub(r.began), running: m.runs(r)}
	return d.judge(there, limits{m.options.Patience, m.options.Retention})
}

// noted is when a branch was first noted.
func (m *Engine) noted(notes map[place]time.Time, p place, now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, before := notes[p]
	if !before {
		at = now
		notes[p] = now
	}
	return at
}

func (m *Engine) unblock(p place) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.scan.blocked, p)
}

// forget drops what was noted of a participant's branches that are not in doubt any
// more.
func (m *Engine) forget(name string, found []InDoubt) {
	there := map[place]bool{}
	for _, d := range found {
		there[place{name, d.XID}] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, notes := range []map[place]time.Time{m.scan.seen, m.scan.blocked} {
		maps.DeleteFunc(notes, func(p place, _ time.Time) bool { return p.participant == name && !there[p] })
	}
}
