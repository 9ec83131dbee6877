package tcctest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

var errQuit = errors.New("tcctest: the caller gave up")

// forward returns scenarios that repeat the try and the confirmation of a branch. Those of one
// group show the same.
func (e *explorer) forward(b string) [][]scenario {
	try, confirm := callID{Name: b, Operation: branch.Try, N: 1}, callID{Name: b, Operation: branch.Confirm, N: 1}
	once := func(kind Kind, which callID, m fault, words string) scenario {
		return scenario{Words: fmt.Sprintf(words, b), Kind: kind, Name: b, FaultOf: rehearsal.Only(which, m)}
	}
	return [][]scenario{{
		once(TryNotIdempotent, try, rehearsal.Lost, "the answer of the try of %s was lost, and the try was repeated"),
		once(TryNotIdempotent, try, fault{Twice: true}, "the try of %s arrived twice"),
		once(TryNotIdempotent, confirm, fault{Late: true}, "%s was confirmed, and then its try arrived again"),
	}, {
		once(ConfirmNotIdempotent, confirm, rehearsal.Lost, "the answer of the confirmation of %s was lost, and the confirmation was repeated"),
		once(ConfirmNotIdempotent, confirm, fault{Twice: true}, "the confirmation of %s arrived twice"),
	}, {
		once(OutcomeDiffers, try, rehearsal.Gone, "the first try of %s was lost"),
		once(OutcomeDiffers, confirm, rehearsal.Gone, "the first confirmation of %s was lost"),
	}}
}

// An undoCase is a reason why a branch is cancelled.
type undoCase struct {
	words string
	try   fault // of its first try
}

var (
	laterRefused = undoCase{"%s was tried, and then %s", fault{}}
	answerLost   = undoCase{"%s was tried, its answer was lost permanently, and then %s", rehearsal.Lost}
	neverArrived = undoCase{"the try of %s was lost, its outcome was unknown, and then %s", rehearsal.Gone}
)

// backward returns scenarios that cancel a branch, and inject faults into its cancellation. If plain
// has a finding, the others would repeat it.
func (e *explorer) backward(b string) (plain scenario, others [][]scenario) {
	none := fault{}
	plain = e.cancelled(b, CancelIncomplete, laterRefused, "it was cancelled", none)
	return plain, [][]scenario{{
		e.cancelled(b, TryVisible, laterRefused, "it was cancelled", none),
	}, {
		e.cancelled(b, CancelNeedsHold, answerLost, "it was cancelled without its hold", none),
	}, {
		e.cancelled(b, EmptyCancel, neverArrived, "it was cancelled without its hold", none),
	}, {
		e.cancelled(b, CancelNotIdempotent, laterRefused, "the answer of its cancellation was lost, and the cancellation was repeated", rehearsal.Lost),
		e.cancelled(b, CancelNotIdempotent, laterRefused, "its cancellation arrived twice", fault{Twice: true}),
	}, {
		e.cancelled(b, CancelIncomplete, laterRefused, "its first cancellation was lost", rehearsal.Gone),
	}, {
		e.cancelled(b, LateTryAccepted, laterRefused, "it was cancelled, and then its try arrived again", fault{Late: true}),
		e.cancelled(b, LateTryAccepted, neverArrived, "it was cancelled, and then its try arrived for the first time", fault{Late: true}),
	}}
}

// cancelled returns a scenario in which only one branch is tried, and then cancelled: the others are
// refused, or if there are none its caller gives up.
func (e *explorer) cancelled(b string, kind Kind, how undoCase, words string, m fault) scenario {
	reason := "another branch was refused"
	if len(e.branches) == 1 {
		reason = "the caller gave up"
	}
	return scenario{Words: fmt.Sprintf(how.words, b, reason) + ", and " + words, Kind: kind, Name: b, Alone: true,
		FaultOf: func(d callID) fault {
			switch d {
			case callID{Name: b, Operation: branch.Try, N: 1}:
				first := how.try
				first.Quits = len(e.branches) == 1
				return first
			case callID{Name: b, Operation: branch.Cancel, N: 1}:
				return m
			}
			switch {
			case d.Operation == branch.Try && d.Name == b: // its outcome must stay unknown
				return rehearsal.Gone
			case d.Operation == branch.Try:
				no := rehearsal.Refused
				no.After = []string{b}
				return no
			}
			return fault{}
		}}
}

// refusals returns the scenarios in which a branch refuses after all others were tried, which are
// then cancelled together.
func (e *explorer) refusals() (scenarios []scenario) {
	for _, b := range e.branches {
		no := rehearsal.Refused
		no.After = slices.DeleteFunc(slices.Clone(e.branches), func(other string) bool { return other == b })
		scenarios = append(scenarios, scenario{Words: "the try of " + b + " was refused", Kind: CancelIncomplete, FaultOf: func(d callID) fault {
			if d.Name == b && d.Operation == branch.Try {
				return no
			}
			return fault{}
		}})
	}
	return scenarios
}

// concurrentRun returns a scenario in which another process runs the same before the confirmations.
func concurrentRun() scenario {
	return scenario{Words: "all branches were tried, and another process ran the same transaction before the confirmations", Kind: OutcomeDiffers,
		FaultOf: func(d callID) fault { return fault{Rival: d.Operation == branch.Confirm && d.N == 1} }}
}

// lateConfirm returns a scenario in which the holds expire before the confirmations arrive.
func lateConfirm() scenario {
	return scenario{Words: "the decision was to confirm, and the holds expired before the confirmations arrived", Kind: OutcomeDiffers, LateConfirm: true}
}

// A Scene is a transaction before its start, in its own world. [Define] adds its resources.
type Scene struct {
	// Run runs the transaction of an id as the program does, by Engine.Run, and returns its
	// result: nil if it is confirmed, a tcc.ErrCancelled if it is cancelled, another error
	// if that is unknown. It is called again with the same id after a crash of an engine,
	// and once with another id for a concurrent process.
	Run func(ctx context.Context, m *tcc.Engine, id string) error
	// Snapshot returns the world: a string, or a value that is then encoded as JSON. It
	// shows the state, not the history: equal worlds have equal snapshots. It is not called
	// during a method of a resource.
	Snapshot func() any
	// Visible returns the part of the world that a try must not change: without holds and
	// without the remaining quantities. nil disables the check.
	Visible func() any
	// Invariant returns an error if a condition does not hold that must always hold, such as
	// that no more is held and sold than exists; nil disables it. It is called after each
	// call of a resource, possibly during another one.
	Invariant func() error
	// Sweep frees expired holds, like [tcc.Holds.Sweep]: it asks for the decision on each,
	// and cancels those that will not be confirmed. It returns an error of ask. nil disables
	// the scenarios of expiry.
	Sweep func(ctx context.Context, ask tcc.Ask) error
	// Options of the engine. Times are virtual.
	Options *tcc.Options
	// Ignore reports whether a line of a snapshot does not count, such as one of a log; nil
	// ignores none.
	Ignore func(line string) bool
	// RealTime makes the transaction use the machine's clock, for resources that use a
	// network. Pauses before retries are then an eighth of their bounds, but timeouts and
	// Options.Hold take their full time.
	RealTime bool
	// Limit bounds a run, without the time of the holds; a transaction that has not ended
	// by then is a [NeverEnds]. 0 means an hour, or in real time 10 seconds.
	Limit time.Duration

	stage *stage
}

// stage has the resources of a scene, and the run that calls them.
type stage struct {
	names   []string
	defined []tcc.Defined
	run     *run // nil means without faults
}

// Define is [tcc.Define] for a scene. The faults are injected into the calls of the resource.
func Define[Q, H any](s *Scene, name string, r tcc.Resource[Q, H]) tcc.Definition[Q, H] {
	if s.stage == nil {
		s.stage = &stage{}
	}
	d := tcc.Define[Q, H](name, nil)
	if r != nil {
		d = tcc.Define[Q, H](name, played[Q, H]{s.stage, name, r})
	}
	s.stage.names, s.stage.defined = append(s.stage.names, name), append(s.stage.defined, d)
	return d
}

// played is a resource in the runs of a scene.
type played[Q, H any] struct {
	stage *stage
	name  string
	of    tcc.Resource[Q, H]
}

func (p played[Q, H]) Try(ctx context.Context, q Q, until time.Time) (h H, err error) {
	hold, err := p.stage.call(ctx, p.name, func(ctx context.Context) (any, error) { return p.of.Try(ctx, q, until) })
	h, _ = hold.(H)
	return h, err
}

func (p played[Q, H]) Confirm(ctx context.Context, q Q, h H) error {
	_, err := p.stage.call(ctx, p.name, func(ctx context.Context) (any, error) { return nil, p.of.Confirm(ctx, q, h) })
	return err
}

func (p played[Q, H]) Cancel(ctx context.Context, q Q, h *H) error {
	_, err := p.stage.call(ctx, p.name, func(ctx context.Context) (any, error) { return nil, p.of.Cancel(ctx, q, h) })
	return err
}

// Explore runs a scene in all scenarios of the package comment, and reports each finding as an
// error of the test. The function returns a new scene for each run, always the same; there are
// some forty runs for a branch. Explore must not be called in a bubble of synctest.
func Explore(t *testing.T, scene func() Scene) {
	t.Helper()
	found, err := Findings(t, scene)
	for _, f := range found {
		t.Error(f)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Findings is [Explore] that returns the findings, at most one for each kind and branch. The error
// has the reason why the exploration did not begin, or ended early: a resource is invalid, the
// transaction is not confirmed without faults, or the scenes differ.
func Findings(t *testing.T, scene func() Scene) ([]Finding, error) {
	t.Helper()
	if scene == nil {
		return nil, errors.New("explore a transaction: a function that returns a scene is required")
	}
	found, err := newExplorer(t, scene).explore()
	if err != nil {
		return found, fmt.Errorf("explore a transaction: %w", err)
	}
	return found, nil
}

// made returns the scene with defaults.
func made(s Scene) (Scene, error) {
	if s.Limit <= 0 {
		s.Limit = time.Hour
		if s.RealTime {
			s.Limit = 10 * time.Second
		}
	}
	o := tcc.Options{}
	if s.Options != nil {
		o = *s.Options
	}
	if o.Hold <= 0 {
		o.Hold = time.Minute // the default, whose value is needed here
	}
	s.Options = &o
	switch {
	case s.Run == nil:
		return s, errors.New("the scene has no Run; give it the function that runs the transaction")
	case s.stage == nil:
		return s, errors.New("the scene has no resources; name them by Define")
	}
	return s, nil
}
