package sagatest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/saga"
)

// A Scene is a saga that is about to begin in a world of its own.
type Scene[I any] struct {
	// Saga is the definition, over the world. Its retry policies are kept to; times
	// are virtual.
	Saga saga.Definition[I]
	// Input is what it is started with.
	Input I
	// Snapshot shows the world: a string, or what is then written as JSON. It shows
	// what is there, not how it came to be, and is the same for worlds that are. It is
	// not called while an action or undo is at work.
	Snapshot func() any
	// Ignore says which lines of a snapshot do not count, such as those of logs; nil
	// is none.
	Ignore func(line string) bool
	// RealTime has the saga run by the clock of the machine, for actions that use a
	// network. Pauses before retries are an eighth of their bounds then, but a run
	// takes as long as its timeouts and waits do.
	RealTime bool
	// Limit is how long a run may take; a saga that has not ended then is one that
	// never ends. It has to be longer than the saga waits by itself. 0 means two days,
	// or in real time 10 seconds.
	Limit time.Duration
}

// Explore plays a scene in all the ways that the package comment tells, and reports
// what it finds, each as an error of the test. The function makes a new scene, the same
// each time, for each run; there are some twenty runs for a step. It may not be called in a
// bubble of synctest.
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

// Findings is [Explore] for who reports by himself. There is one finding at most for
// each kind and step. An error says why there is nothing to explore, or no more: the
// definition is wrong, the saga does not succeed undisturbed, or the scene is not the
// same each time.
func Findings[I any](t *testing.T, scene func() Scene[I]) ([]Finding, error) {
	t.Helper()
	if scene == nil {
		return nil, errors.New("explore a saga: there is no scene; give a function that makes one")
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
	do       func(ctx context.Context, e *saga.Engine) error // begins it, or finds it begun, and waits for its end
	snapshot func() any
	ignore   func(line string) bool
	realTime bool
	limit    time.Duration
}

// id is the saga's in the journal of each run.
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
