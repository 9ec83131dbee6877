package twopc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// TestScanReportsNoShutdown: a participant that cannot be scanned is reported, and so is a branch that
// cannot be finished, unless the scan's context has ended.
func TestScanReportsNoShutdown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		failed, orphans, w := 0, 0, newWorld()
		ctx, cancel := context.WithCancel(t.Context())
		ending := func(at string) error {
			if strings.HasPrefix(at, "south rollback") {
				time.Sleep(time.Second)
				cancel()
				return context.Canceled
			}
			return nil
		}
		for n := range uint32(3) {
			w.prepare(t, "south", begin("1", time.Now(), n).xid("south"))
		}
		time.Sleep(patience)
		p := w.start(t, ending, &Options{Hooks: &observe.TwoPC{
			Orphan: func(observe.TwoPCOrphan) { orphans++ },
			Scanned: func(o observe.TwoPCScanned) {
				if o.Err != nil {
					failed++
				}
			},
		}})
		p.participants["north"] = deaf{p.participants["north"]}
		p.Scan(ctx)
		p.Scan(ctx)
		if failed != 1 || orphans != 0 {
			t.Errorf("%d failures and %d branches reported, want the failure of the first scan", failed, orphans)
		}
	})
}

// TestLongestScan: with the longest Scan each participant is scanned once.
func TestLongestScan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var scans atomic.Int64
		p := newWorld().start(t, nil, &Options{Scan: math.MaxInt64, Hooks: &observe.TwoPC{Scanned: func(observe.TwoPCScanned) {
			if scans.Add(1) > 20 {
				cancel()
			}
		}}})
		if err := p.Watch(ctx); err != context.DeadlineExceeded || scans.Load() != int64(len(names)) {
			t.Errorf("%v after %d scans", err, scans.Load())
		}
	})
}

// TestScan: a scan ends once all branches that it has found are finished. While the abort cannot be
// written to the journal, nothing is rolled back. A participant that has committed is reported as for a
// run.
func TestScan(t *testing.T) {
	for name, c := range map[string]struct {
		meet                func(at string) error
		verdict             string
		err                 error
		inDoubt, heuristics int // afterwards
	}{
		"slow": {func(at string) error {
			if strings.HasPrefix(at, "north rollback") {
				time.Sleep(time.Second)
			}
			return nil
		}, "roll back", nil, 0, 0},
		"undecided": {losing("journal append"), "blocked", errNetwork, 1, 0},
		"committed": {func(at string) error {
			if strings.HasPrefix(at, "north rollback") {
				return fmt.Errorf("%w: paid out", driver.ErrHeuristic)
			}
			return nil
		}, "roll back", driver.ErrHeuristic, 1, 1},
	} {
		runBubble(t, name, func(t *testing.T) {
			var reported []observe.TwoPCOrphan
			heuristics, w := 0, newWorld()
			p := w.start(t, c.meet, &Options{Hooks: &observe.TwoPC{
				Orphan:    func(o observe.TwoPCOrphan) { reported = append(reported, o) },
				Heuristic: func(observe.TwoPCHeuristic) { heuristics++ },
			}})
			w.prepare(t, "north", begin("1", time.Now(), 1).xid("north"))
			time.Sleep(patience)
			txntest.Serve(t, p.coordinator.Serve, 1)
			p.Scan(t.Context())
			if len(reported) != 1 || reported[0].Verdict != c.verdict || !errors.Is(reported[0].Err, c.err) || reported[0].Age != patience ||
				w.inDoubt(t) != c.inDoubt || heuristics != c.heuristics {
				t.Errorf("%+v, %d in doubt, %d heuristic", reported, w.inDoubt(t), heuristics)
			}
			if o, err := p.Look(t.Context(), "1"); c.heuristics > 0 && (err != nil || o.State != Heuristic || len(o.Dead) != 1) {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
}

// TestAgeIsTheParticipants: a process that has just started knows the age of a branch. If a
// participant shows no time, the age counts from the first scan that found the branch.
func TestAgeIsTheParticipants(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
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
		p := w.start(t, losingWhile(&gone, ""), nil)
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
