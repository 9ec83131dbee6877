package tcctest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/tcc"
)

// A Scene is a transaction that is about to begin in a world of its own. Its resources
// are those that [Define] has named in it.
type Scene struct {
	// Run runs the transaction of that id as the program does, by Engine.Run, and
	// returns what the program tells: nil if it is booked, an error that is
	// tcc.ErrCancelled if it is not, any other if that is not known. It is called again
	// with the same id when an engine has crashed, and once with another id for somebody
	// who wants the same at the same time.
	Run func(ctx context.Context, m *tcc.Engine, id string) error
	// Snapshot shows the world: a string, or what is then written as JSON. It shows what
	// is there, not how it came to be, and is the same for worlds that are. It is not
	// called while a method of a resource is at work.
	Snapshot func() any
	// Visible shows what others see, without what is held and what is left for them: a
	// try may not change it. Nil is not looked at.
	Visible func() any
	// Invariant says what must always be so, such as that no more is held and sold than
	// there is; nil is nothing. It is called after each call of a resource, perhaps
	// while another one is at work.
	Invariant func() error
	// Sweep is what frees holds whose time is over, as [tcc.Holds.Sweep]: it asks for the
	// decision on each, and cancels those that will not be confirmed. An error is one of
	// asking. With nil, expiry is not played.
	Sweep func(ctx context.Context, ask tcc.Ask) error
	// Options are those of the engine. Times are virtual.
	Options *tcc.Options
	// Ignore says which lines of a snapshot do not count, such as those of logs; nil is
	// none.
	Ignore func(line string) bool
	// RealTime has the transaction run by the clock of the machine, for resources that
	// use a network. Pauses before retries are an eighth of their bounds then, but a
	// run takes as long as its timeouts do, and expiry as long as Options.Hold.
	RealTime bool
	// Limit is how long a run may take, beside the time of the holds; a transaction that
	// has not ended then is one that never ends. 0 means an hour, or in real time 10
	// seconds.
	Limit time.Duration

	stage *stage
}

// stage is where the resources of a scene stand, and the run that calls them.
type stage struct {
	names   []string
	defined []tcc.Defined
	run     *run // nil: they are called as they are
}

// Define is [tcc.Define] for a scene: the resource is one of its engine, and its calls
// are those that are lost, doubled and late.
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

// Explore plays a scene in all the ways that the package comment tells, and reports
// what it finds, each as an error of the test. The function makes a new scene, the same
// each time, for each run; there are some forty runs for a branch. It may not be called
// in a bubble of synctest.
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

// Findings is [Explore] for who reports by himself. There is one finding at most for
// each kind and branch. An error says why there is nothing to explore, or no more: a
// resource is wrong, the transaction is not confirmed undisturbed, or the scene is not
// the same each time.
func Findings(t *testing.T, scene func() Scene) ([]Finding, error) {
	t.Helper()
	if scene == nil {
		return nil, errors.New("explore a transaction: there is no scene; give a function that makes one")
	}
	found, err := newExplorer(t, scene).explore()
	if err != nil {
		return found, fmt.Errorf("explore a transaction: %w", err)
	}
	return found, nil
}

// made is the scene with its zero values filled in.
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
		o.Hold = time.Minute // what it is by default, and here it has to be known
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
