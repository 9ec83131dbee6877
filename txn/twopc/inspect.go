package twopc

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

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
