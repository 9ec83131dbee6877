package sagatest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/saga"
)

// A Scene is a saga before its start, in its own world.
type Scene[I any] struct {
	// Saga is the definition, over the world. Its retry policies apply; times are virtual.
	Saga saga.Definition[I]
	// Input is the input of the saga.
	Input I
	// Snapshot returns the world: a string, or a value that is then encoded as JSON. It
	// shows the state, not the history: equal worlds have equal snapshots. It is not
	// called during an action or undo.
	Snapshot func() any
	// Ignore reports whether a line of a snapshot does not count, such as one of a log; nil
	// ignores none.
	Ignore func(line string) bool
	// RealTime makes the saga use the machine's clock, for actions that use a network.
	// Pauses before retries are then an eighth of their bounds, but timeouts and waits
	// take their full time.
	RealTime bool
	// Limit bounds a run; a saga that has not ended by then is a [NeverEnds]. It must be
	// longer than the saga's own waits. 0 means two days, or in real time 10 seconds.
	Limit time.Duration
}

// Explore runs a scene in all scenarios of the package comment, and reports each finding as an
// error of the test. The function returns a new scene for each run, always the same; there are
// some twenty runs for a step. Explore must not be called in a bubble of synctest.
func Explore[I any](t *testing.T, scene func() Scene[I]) {
	t.Helper()
	found, err := Findings(t, scene)
	for _, f := range found {
		t.Error(f)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Findings is [Explore] that returns the findings, at most one for each kind and step. The error
// has the reason why the exploration did not begin, or ended early: the definition is invalid,
// the saga does not succeed without faults, or the scenes differ.
func Findings[I any](t *testing.T, scene func() Scene[I]) ([]Finding, error) {
	t.Helper()
	if scene == nil {
		return nil, errors.New("explore a saga: a function that returns a scene is required")
	}
	found, err := newExplorer(t, func() set { return built(scene()) }).explore()
	if err != nil {
		return found, fmt.Errorf("explore a saga: %w", err)
	}
	return found, nil
}

// set is a scene without its type.
type set struct {
	defined  func(around saga.Interceptor) saga.Defined
	do       func(ctx context.Context, e *saga.Engine) error // begins the saga, or attaches to it, and waits for its end
	snapshot func() any
	ignore   func(line string) bool
	realTime bool
	limit    time.Duration
}

// id is the id of the saga in the journal of each run.
const id = "explored"

func built[I any](s Scene[I]) set {
	if s.Limit <= 0 {
		s.Limit = 48 * time.Hour
		if s.RealTime {
			s.Limit = 10 * time.Second
		}
	}
	return set{
		defined: func(around saga.Interceptor) saga.Defined { return s.Saga.Intercept(around) },
		do: func(ctx context.Context, e *saga.Engine) error {
			_, err := s.Saga.Do(ctx, e, id, s.Input)
			return err
		},
		snapshot: s.Snapshot, ignore: s.Ignore, realTime: s.RealTime, limit: s.Limit,
	}
}
