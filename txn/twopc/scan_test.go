package twopc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// scanned scans north with an undecided branch of age in doubt there, and returns the
// branches that the hook received.
func scanned(t *testing.T, w *world, meet func(at string) error, age time.Duration) (told []observe.TwoPCOrphan, heuristic int) {
	t.Helper()
	p := w.start(t, meet, &Options{Hooks: &observe.TwoPC{
		Orphan:    func(o observe.TwoPCOrphan) { told = append(told, o) },
		Heuristic: func(observe.TwoPCHeuristic) { heuristic++ },
	}})
	w.prepare(t, "north", begin("1", time.Now(), 1).xid("north"))
	time.Sleep(age)
	p.Scan(t.Context())
	return told, heuristic
}

// TestScanReportsNoShutdown: a participant that cannot be scanned is reported, unless the scan's context has ended.
func TestScanReportsNoShutdown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		failed := 0
		p := newWorld().start(t, nil, &Options{Hooks: &observe.TwoPC{
			Scanned: func(o observe.TwoPCScanned) {
				if o.Err != nil {
					failed++
				}
			},
		}})
		p.participants["north"] = silent{p.participants["north"]}
		p.Scan(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p.Scan(ctx)
		if failed != 1 {
			t.Errorf("%d failures reported, want that of the first scan", failed)
		}
	})
}

// silent is a participant that cannot be scanned.
type silent struct{ driver.Participant }

func (silent) InDoubt(context.Context) ([]driver.InDoubt, error) {
	return nil, errors.New("no connection")
}

// TestScanWaits: a scan ends once all branches that it has found are finished.
func TestScanWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld()
		told, _ := scanned(t, w, func(at string) error {
			if strings.HasPrefix(at, "north rollback") {
				time.Sleep(time.Second)
			}
			return nil
		}, patience)
		if len(told) != 1 || told[0].Verdict != "roll back" || told[0].Err != nil || told[0].Age != patience || w.inDoubt(t) != 0 {
			t.Errorf("%+v, %d in doubt", told, w.inDoubt(t))
		}
	})
}

// TestUndecidedIsLeft: while the abort cannot be written to the journal, nothing is rolled
// back, and that is reported.
func TestUndecidedIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld()
		told, _ := scanned(t, w, func(at string) error {
			if strings.HasPrefix(at, "journal append") {
				return errNetwork
			}
			return nil
		}, patience)
		if len(told) != 1 || told[0].Verdict != "blocked" || !errors.Is(told[0].Err, errNetwork) || w.inDoubt(t) != 1 {
			t.Errorf("%+v, %d in doubt", told, w.inDoubt(t))
		}
	})
}

// TestScanFindsAHeuristic: if a participant answers a scan's rollback that an operator has
// committed, that is reported as for a run.
func TestScanFindsAHeuristic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		told, heuristic := scanned(t, newWorld(), func(at string) error {
			if strings.HasPrefix(at, "north rollback") {
				return fmt.Errorf("%w: paid out", driver.ErrHeuristic)
			}
			return nil
		}, patience)
		if len(told) != 1 || !errors.Is(told[0].Err, driver.ErrHeuristic) || heuristic != 1 {
			t.Errorf("%+v, %d heuristic", told, heuristic)
		}
	})
}

// TestAgeIsTheParticipants: a process that has just started knows the age of a branch. If a
// participant shows no time, the age counts from the first scan that found the branch.
func TestAgeIsTheParticipants(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld()
		w.prepare(t, "north", begin("1", time.Now(), 1).xid("north"))
		w.prepare(t, "south", begin("2", time.Now(), 1).xid("south"))
		time.Sleep(time.Hour)
		p := w.start(t, nil, nil)
		p.participants["south"] = timeless{p.participants["south"]}
		for _, since := range []time.Duration{0, time.Minute} {
			found, err := p.InDoubt(t.Context())
			if ok(t, err); len(found) != 2 || found[0].Age != time.Hour+since || found[1].Age != since {
				t.Errorf("%+v", found)
			}
			time.Sleep(time.Minute)
		}
	})
}

// timeless is a participant that does not show since when branches are in doubt.
type timeless struct{ driver.Participant }

func (p timeless) InDoubt(ctx context.Context) ([]driver.InDoubt, error) {
	all, err := p.Participant.InDoubt(ctx)
	for i := range all {
		all[i].Since = time.Time{}
	}
	return all, err
}

// TestBlockedAnew: the blocked time of a branch restarts after an answer of the journal, and
// branches that are no longer in doubt are forgotten.
func TestBlockedAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var gone atomic.Bool
		w := newWorld()
		p := w.start(t, func(string) error {
			if gone.Load() {
				return errNetwork
			}
			return nil
		}, nil)
		x := begin("1", time.Now(), 1).xid("north")
		w.prepare(t, "north", x)
		for _, c := range []struct {
			gone  bool
			since time.Duration
		}{{true, 0}, {true, time.Minute}, {false, 0}, {true, 0}, {true, time.Minute}} {
			gone.Store(c.gone)
			found, err := p.InDoubt(t.Context())
			if ok(t, err); len(found) != 1 || (found[0].Verdict == "blocked") != c.gone || found[0].BlockedFor != c.since {
				t.Errorf("%+v, want %+v", found, c)
			}
			time.Sleep(time.Minute)
		}
		if len(p.scan.seen) != 1 || len(p.scan.blocked) != 1 {
			t.Errorf("%+v", p.scan)
		}
		ok(t, w.banks["north"].Rollback(t.Context(), x))
		if _, err := p.InDoubt(t.Context()); err != nil || len(p.scan.seen) != 0 || len(p.scan.blocked) != 0 {
			t.Errorf("%v, remembered %+v", err, p.scan)
		}
	})
}
