package saga

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Version is the definition as its n-th version, from 1; without it there is none. A saga is
// driven by the version that it began with, for as long as it takes: give an engine the
// old versions too until their sagas have ended. A start of an id that there is attaches to
// it, whatever its version. What changes between versions is free: steps, their order,
// undos, the type of the input.
func (d Definition[I]) Version(n int) Definition[I] { d.plan.version = n; return d }

// OnEnd has f called once a saga of the definition has ended, SUCCEEDED,
// COMPENSATED or RESOLVED, and that is durable: at least once, by the owner of the saga's
// shard, and again until it returns nil. [From] has a key that is the same each time. A
// call takes 30 seconds at most. Of a dead letter f is not called before somebody has
// helped it; the hook Dead is. A saga that was begun by a definition without OnEnd, or by
// [Begin], has none.
func (d Definition[I]) OnEnd(f func(ctx context.Context, o Outcome) error) Definition[I] {
	d.plan.ended = f
	return d
}

const versionMark = "@v"

// key is what the type of its sagas says: its name and version.
func (p plan) key() string {
	if p.version == 0 {
		return p.name
	}
	return p.name + versionMark + strconv.Itoa(p.version)
}

// base is the name of a definition, without a version.
func base(key string) string {
	if name, number, is := strings.Cut(key, versionMark); is {
		if n, err := strconv.Atoi(number); err == nil && n > 0 && strconv.Itoa(n) == number {
			return name
		}
	}
	return key
}

// plan is the definition of a name or key; of several versions the highest.
func (e *Engine) plan(name string) (plan, bool) {
	best, found := e.plans[name]
	for _, p := range e.plans {
		if p.name == name && (!found || p.version > best.version) {
			best, found = p, true
		}
	}
	return best, found
}

// ending is the record behind the last one: the end, unless somebody is to be called
// first.
func (m *machine) ending() journal.Entry {
	if m.notify && !m.atEnd {
		return journal.Entry{Kind: recordFinished}
	}
	return journal.Entry{Kind: recordEnd}
}

// report has the end reported, once it is durable.
func (c *execution) report(now time.Time) (action, error) {
	switch {
	case c.plan.ended == nil:
		return action{write: true, rest: true}, c.note(now, true, journal.Entry{Kind: recordEnd})
	case len(c.pending) > 0:
		return action{write: true}, nil
	case now.Before(c.again):
		return action{wait: c.again}, nil
	}
	return action{report: true}, nil
}

// report calls who wants to know.
func (d *drive) report() error {
	o := outcome(d.Head(), &d.m)
	task := coordinator.Task{Target: d.plan.name + " ended", Timeout: 30 * time.Second, Call: branch.Call{
		Transaction: d.ID(), Operation: "ended", Attempt: d.reports + 1},
		Do: func(ctx context.Context) error {
			return d.plan.ended(with(ctx, Call{Type: d.plan.name, Outputs: o.Outputs}), o)
		}}
	err := d.Round(task)[0]
	if gone := d.Holds(); gone != nil && err != nil {
		return gone
	}
	if err == nil {
		return d.note(d.Now(), true, journal.Entry{Kind: recordEnd})
	}
	d.reports++
	wait := Policy{}.resolve().delay(branch.ClassUnknown, 0, d.reports, d.Random())
	d.again = d.Now().Add(wait)
	d.failedReport(err, wait)
	return nil
}

// checkVersion finds what is wrong with the version of a definition.
func (p plan) checkVersion() error {
	if p.version < 0 {
		return p.wrong("", fmt.Sprintf("its version is %d; give it one from 1", p.version))
	}
	if base(p.name) != p.name {
		return p.wrong("", "its name ends as one with a version does; give it a Version instead")
	}
	return nil
}
