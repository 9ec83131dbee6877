package countermeasure_test

import (
	"bytes"
	"context"
	"iter"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/countermeasure"
)

// seed of the random schedules.
const seed = 20260305

// without is the variant that has no countermeasure.
const without = "without"

// judged records a run, and lets a checker of package history judge it.
func (w world) judged(check func(iter.Seq2[history.Event, error]) (history.Verdict, error), run func(h *history.Writer)) history.Verdict {
	w.Helper()
	var file bytes.Buffer
	h, err := history.NewWriter(&file, history.Header{Run: w.Name(), Seed: seed}, nil)
	ok(w, err)
	run(h)
	ok(w, h.Close())
	r, err := history.NewReader(&file)
	ok(w, err)
	v, err := check(r.Events())
	ok(w, err)
	return v
}

// tried runs an anomaly's sagas in a schedule that is known to show it, and then in
// random ones; found says whether a run shows it. Without a countermeasure it must be
// seen in the known schedule, in some of the others, and not in all: then it is the
// interleaving that makes it. With one it must never be seen.
func (w world) tried(variant, known string, turns []int, found func(schedule string) bool) {
	w.Helper()
	broken := variant == without
	if got := found(known); got != broken {
		w.Errorf("%s, schedule %s: the anomaly is seen: %v", variant, known, got)
	}
	seen, all := 0, schedules(seed, turns...)
	all = all[:min(12, len(all))]
	for _, schedule := range all {
		if found(schedule) {
			seen++
		}
	}
	if broken != (seen > 0) || seen == len(all) {
		w.Errorf("%s: seen in %d of %d random schedules", variant, seen, len(all))
	}
}

// settles ends a call of a history by the outcome of its saga.
func settles(call history.Call) func(done bool) {
	return func(done bool) {
		if done {
			call.OK("")
		} else {
			call.Fail("undone")
		}
	}
}

// act is what a step does.
type act = func(ctx context.Context, db driver.SQL) error

// all does one thing after the other, in one transaction.
func all(acts ...act) act {
	return func(ctx context.Context, db driver.SQL) error {
		for _, a := range acts {
			if err := a(ctx, db); err != nil {
				return err
			}
		}
		return nil
	}
}

// The acts that the sagas of these tests are made of.

func into(seen *int64, query string) act {
	return func(ctx context.Context, db driver.SQL) (err error) {
		*seen, err = databases.Value[int64](ctx, db, query)
		return err
	}
}

func (w world) acquires(resource, owner string) act {
	return func(ctx context.Context, db driver.SQL) error {
		return w.locks.Acquire(ctx, db, countermeasure.Intent{Resource: resource, Owner: owner})
	}
}

func (w world) releases(resource, owner string) act {
	return func(ctx context.Context, db driver.SQL) error {
		_, err := w.locks.Release(ctx, db, resource, owner)
		return err
	}
}

// versioned is the accounts with their versions.
var versioned = countermeasure.Reread{Row: version.Column{Table: "account", Key: "id", Version: "version"}}

// unchanged undoes the saga if the account was written since it was seen.
func unchanged(account string, seen *int64) act {
	return func(ctx context.Context, db driver.SQL) error {
		return refused[*countermeasure.ChangedError](versioned.Unchanged(ctx, db, account, *seen))
	}
}
