package sagatest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/saga"
)

// failing has scenes for which Explore fails its test, and the printed texts.
var failing = map[string]struct {
	scene func() Scene[int]
	says  []string
}{
	"findings": {func() Scene[int] {
		s := newShop()
		nothing := func(context.Context, int, *string) error { return nil }
		d := saga.Define("order", taking(s, "a").Undo("una", nothing), taking(s, "b").Undo("unb", nothing), taking(s, "c").Pivot())
		return Scene[int]{Saga: d, Input: 3, Snapshot: s.snapshot}
	}, []string{
		"missing undo: step a", "missing undo: step b",
		"when: a was done, and later and concurrent steps were refused, and it was undone",
		"then: the saga was undone, and an effect of the step remains",
		"- \"a\": 10, + \"a\": 7,",
	}},
	"error": {func() Scene[int] { return Scene[int]{} }, []string{"explore a saga: the scene has no Snapshot"}},
	"hangs": {func() Scene[int] {
		hang := saga.Step("hang", func(context.Context, int) (string, error) { select {} })
		return Scene[int]{Saga: saga.Define("order", hang.Pivot()), Snapshot: func() any { return "" }}
	}, []string{"never ends: step hang", "does not return when its context ends"}},
	"leaves a goroutine": {func() Scene[int] {
		leave := saga.Step("leave", func(context.Context, int) (string, error) { go func() { select {} }(); return "", nil })
		return Scene[int]{Saga: saga.Define("order", leave.Pivot()), Snapshot: func() any { return "" }}
	}, []string{"never ends: step leave", "leaves a goroutine that waits for ever"}},
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
		define   func(w *World) saga.Definition[int]
		snapshot func() any
		target   error
		says     string
	}{
		"refused": {func(w *World) saga.Definition[int] {
			no := saga.Step("p", func(context.Context, int) (string, error) { return "", saga.Fail(noSeat) })
			return saga.Define("order", good(w, "a"), no.Pivot())
		}, nil, nil, "without faults the saga must succeed, and is COMPENSATED: p: no seat"},
		"dead letter": {func(w *World) saga.Definition[int] {
			no := saga.Step("p", func(context.Context, int) (string, error) { return "", saga.Fail(noSeat) })
			return saga.Define("order", take(w, "a").Undo("una", func(context.Context, int, *string) error { return saga.Fail(noSeat) }), no.Pivot())
		}, nil, nil, "must succeed, and is DEAD_LETTER"},
		"wrong definition": {func(w *World) saga.Definition[int] { return saga.Define("order", take(w, "a")) }, nil, nil, "it cannot be undone"},
		"no steps":         {func(w *World) saga.Definition[int] { return saga.Define[int]("order") }, nil, nil, "it has no steps"},
		"zero definition":  {func(*World) saga.Definition[int] { return saga.Definition[int]{} }, nil, nil, "its name has 0 bytes"},
		"list refuses": {func(w *World) saga.Definition[int] {
			return saga.DefineList("order", func(int) ([]saga.Stage[int], error) { return nil, noSeat })
		}, nil, noSeat, ""},
		"bad snapshot": {func(w *World) saga.Definition[int] { return saga.Define("order", good(w, "a")) },
			func() any { return make(chan int) }, nil, "write the snapshot as JSON"},
		"grown since": {func(w *World) saga.Definition[int] { return saga.Define("order", good(w, "a")) },
			func() any { runs++; return runs }, nil, "two runs without faults differ"},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := Findings(t, func() Scene[int] {
				w := &World{}
				s := Scene[int]{Saga: c.define(w), Snapshot: w.Snapshot}
				if c.snapshot != nil {
					s.Snapshot = c.snapshot
				}
				return s
			})
			if len(found) > 0 || err == nil || c.target != nil && !errors.Is(err, c.target) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, %v", found, err)
			}
		})
	}
	if _, err := Findings[int](t, nil); err == nil {
		t.Error("no scene, no error")
	}
}

// TestNotInABubble: Findings panics with the message of synctest.
func TestNotInABubble(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		defer func() {
			if cause := fmt.Sprint(recover()); !strings.Contains(cause, "bubble") || strings.Contains(cause, "deadlock") {
				t.Errorf("%v", cause)
			}
		}()
		found, err := Findings(t, worldly(func(w *World) saga.Definition[int] { return saga.Define("order", good(w, "a")) }))
		t.Errorf("%v, %v", found, err)
	})
}

// TestScenesHaveToBeTheSame: a scene with a used world is reported.
func TestScenesHaveToBeTheSame(t *testing.T) {
	t.Parallel()
	var scenes atomic.Int64
	_, err := Findings(t, func() Scene[int] {
		w := &World{}
		if scenes.Add(1) > 4 {
			w.Set("old", "1")
		}
		return Scene[int]{Saga: saga.Define("order", good(w, "a")), Input: 1, Snapshot: w.Snapshot}
	})
	if err == nil || !strings.Contains(err.Error(), "differ before anything was done") || !strings.Contains(err.Error(), "+ old: 1") {
		t.Errorf("%v", err)
	}
}

// TestLimitEndsARun: a saga that waits for longer has the finding NeverEnds.
func TestLimitEndsARun(t *testing.T) {
	t.Parallel()
	for limit, want := range map[time.Duration]int{0: 1, 30 * 24 * time.Hour: 0} {
		scene := worldly(func(w *World) saga.Definition[int] {
			return saga.Define("order", good(w, "a"), saga.Sleep[int]("w", 20*24*time.Hour), take(w, "p").Pivot())
		})
		found, _ := explored(t, func() Scene[int] {
			s := scene()
			s.Limit = limit
			return s
		})
		if len(found) != want || want > 0 && found[0].Kind != NeverEnds {
			t.Errorf("limit %v: %v", limit, found)
		}
	}
}

// TestRealTimeLimit: in real time the limit is by the machine's clock.
func TestRealTimeLimit(t *testing.T) {
	t.Parallel()
	found, runs := explored(t, func() Scene[int] {
		hang := saga.Step("hang", func(ctx context.Context, _ int) (string, error) { <-ctx.Done(); return "", ctx.Err() })
		return Scene[int]{Saga: saga.Define("order", hang.Pivot()), Snapshot: func() any { return "" }, RealTime: true, Limit: 100 * time.Millisecond}
	})
	if len(found) != 1 || found[0].Kind != NeverEnds || found[0].Step != "hang" || runs != 1 {
		t.Errorf("%v in %d runs", found, runs)
	}
}
