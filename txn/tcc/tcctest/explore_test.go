package tcctest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// alone is a scene of one resource.
func alone(r tcc.Resource[int, string]) Scene {
	s := Scene{Snapshot: func() any { return "" }}
	each(&s, map[string]tcc.Resource[int, string]{"a": r})
	return s
}

// trying is a resource with the given try.
func trying(try func(ctx context.Context) (string, error)) tcc.Resource[int, string] {
	return functions{try: func(ctx context.Context, _ int, _ time.Time) (string, error) { return try(ctx) }}
}

// failing has scenes for which Explore fails its test, and the printed texts.
var failing = map[string]struct {
	scene func() Scene
	says  []string
}{
	"findings": {func() Scene {
		return orders(func(r *room, _ *Scene) {
			r.cancel = func(_ context.Context, id string, _ int, _ *string) error { r.states[id] = cancelled; return nil }
		})
	}, []string{
		"cancel incomplete: branch b",
		"when: b was tried, and then another branch was refused, and it was cancelled",
		"then: the transaction was cancelled, and an effect of the branch remains",
		"- room free: 10 - room held: 0 + room free: 8 + room held: 2",
	}},
	"error": {func() Scene { return Scene{} }, []string{"explore a transaction: the scene has no Run"}},
}

// TestExploreFails its test, and prints the findings or the error.
func TestExploreFails(t *testing.T) {
	texts := map[string][]string{}
	for name, c := range failing {
		texts[name] = c.says
	}
	txntest.FailsOutside(t, func(name string) { Explore(t, failing[name].scene) }, texts)
}

// TestNothingToExplore: an error has the reason, and there are no findings.
func TestNothingToExplore(t *testing.T) {
	t.Parallel()
	noSeat := errors.New("no seat")
	runs := 0
	for name, c := range map[string]struct {
		change func(s *Scene)
		target error
		says   string
	}{
		"no run":        {func(s *Scene) { s.Run = nil }, nil, "the scene has no Run"},
		"no snapshot":   {func(s *Scene) { s.Snapshot = nil }, nil, "the scene has no Snapshot"},
		"bad snapshot":  {func(s *Scene) { s.Snapshot = func() any { return make(chan int) } }, nil, "write the snapshot as JSON"},
		"no resources":  {func(s *Scene) { s.stage = nil }, nil, "the scene has no resources"},
		"nil resource":  {func(s *Scene) { Define[int, string](s, "b", nil) }, nil, `"b": the resource is nil`},
		"two of a name": {func(s *Scene) { Define(s, "a", functions{}) }, nil, "there are two resources of that name"},
		"no engine":     {func(s *Scene) { s.Options = &tcc.Options{Hold: time.Second, Margin: time.Minute} }, nil, "nothing could ever be confirmed"},
		"refused": {func(s *Scene) {
			*s = alone(trying(func(context.Context) (string, error) { return "", branch.Fail(noSeat) }))
		}, tcc.ErrCancelled, `without faults the transaction must be confirmed, and is "CANCELLED"`},
		"not run": {func(s *Scene) {
			s.Run = func(context.Context, *tcc.Engine, string) error { return noSeat }
		}, nil, `not decided, and Run returned: no seat`},
		"panics": {func(s *Scene) {
			s.Run = func(context.Context, *tcc.Engine, string) error { panic("oh") }
		}, nil, `not decided, and Run returned: panic: oh`},
		"tells nothing": {func(s *Scene) {
			run := s.Run
			s.Run = func(ctx context.Context, m *tcc.Engine, id string) error {
				return errors.Join(run(ctx, m, id), noSeat)
			}
		}, noSeat, "without faults the transaction is confirmed, but Run returned"},
		"grown since": {func(s *Scene) { s.Snapshot = func() any { runs++; return runs } }, nil, "two runs without faults differ"},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := Findings(t, func() Scene {
				s := alone(functions{})
				c.change(&s)
				return s
			})
			if err == nil && len(found) == 1 { // it was begun, and had no result
				err, found = errors.New(found[0].Problem), nil
			}
			if len(found) > 0 || err == nil || c.target != nil && !errors.Is(err, c.target) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, %v", found, err)
			}
		})
	}
	if _, err := Findings(t, nil); err == nil {
		t.Error("no scene, no error")
	}
}

// TestLimitEndsARun: a transaction that takes longer has the finding NeverEnds.
func TestLimitEndsARun(t *testing.T) {
	t.Parallel()
	for limit, want := range map[time.Duration]int{time.Second: 1, time.Hour: 0} {
		found, _ := explored(t, func() Scene {
			var first time.Time
			s := alone(functions{confirm: func(context.Context, int) error {
				if first.IsZero() {
					first = time.Now()
				}
				if time.Since(first) < 10*time.Minute {
					return errBusy
				}
				return nil
			}})
			s.Limit = limit
			return s
		})
		if len(found) != want || want > 0 && found[0].Kind != NeverEnds {
			t.Errorf("limit %v: %v", limit, found)
		}
	}
}

// TestIgnoredLinesDoNotCount: a log that grows with each call is no finding.
func TestIgnoredLinesDoNotCount(t *testing.T) {
	t.Parallel()
	scene := func(ignore func(string) bool) func() Scene {
		return func() Scene {
			calls := 0
			s := alone(trying(func(context.Context) (string, error) { calls++; return "", nil }))
			s.Snapshot, s.Ignore = func() any { return fmt.Sprintf("calls: %d\nelse: 0\n", calls) }, ignore
			return s
		}
	}
	if found, _ := explored(t, scene(nil)); len(found) < 2 {
		t.Errorf("without Ignore: %v", found)
	}
	found, _ := explored(t, scene(func(line string) bool { return strings.HasPrefix(line, "calls") }))
	if len(found) > 0 {
		t.Errorf("with Ignore: %v", found)
	}
}

// TestOutsideOfARun: outside of a run a resource of a scene works without faults.
func TestOutsideOfARun(t *testing.T) {
	w := &World{}
	w.Set("a", "9")
	p := played[int, string]{&stage{}, "a", shelf{w, "a"}}
	if h, err := p.Try(call("t", branch.Try), 2, later()); h != "2, 2 held" || err != nil {
		t.Errorf("%q, %v", h, err)
	}
	ok(t, p.Confirm(call("t", branch.Confirm), 2, ""))
	if err := p.Cancel(call("t", branch.Cancel), 2, nil); !errors.Is(err, errConfirmed) {
		t.Errorf("%v", err)
	}
}
