package main

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock/history"
)

// scene is one run of one twin.
type scene struct {
	systems
	stage
	told *history.Writer
	// rand is used only before the actors begin, so that a seed determines the run.
	rand *rand.Rand
	tag  string
}

// name returns a name that no other run uses, even with the same seed.
func (s *scene) name(what string) string { return what + "/" + s.tag }

// workers returns from two to most names.
func (s *scene) workers(most int) []string {
	return []string{"A", "B", "C", "D", "E"}[:2+s.rand.IntN(most-1)]
}

// rounds returns an order in which each makes n steps. None starts a step before all have made the
// previous one, and each round starts with another actor.
func (s *scene) rounds(n int, names []string) (order []string) {
	for range n {
		order = append(order, s.shuffled(names)...)
	}
	return order
}

func (s *scene) shuffled(names []string) []string {
	names = slices.Clone(names)
	s.rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

// state records the state before the actors begin or after they have ended.
func (s *scene) state(op, key string, amount int64) {
	s.told.Record(history.Event{Lane: "-", Kind: history.State, Op: op, Key: key, Amount: amount, Stamp: amount})
}

// refused returns the end of a call that the guard rejected, with the reason.
func refused(why string) history.Event { return history.Event{Kind: history.Reject, Value: why} }

// opObserves is an actor's observation at a pause. Checkers ignore it.
const opObserves = "observes"

// outcome is the result of a run.
type outcome struct {
	history.Verdict
	events []history.Event
	tag    string
}

// String returns the timeline and the verdict, without the names that identify runs.
func (o outcome) String() string {
	return strings.ReplaceAll(fmt.Sprintf("%s\n%v\n", timeline(o.events), o.Verdict), "/"+o.tag, "")
}

// run runs a twin of r and checks it.
func (r race) run(ctx context.Context, s systems, play twin, seed uint64) (o outcome, err error) {
	var file bytes.Buffer
	told, err := history.NewWriter(&file, history.Header{Run: r.name, Seed: int64(seed)}, nil)
	if err != nil {
		return o, err
	}
	o.tag = crand.Text()[:8]
	err = play(ctx, &scene{
		systems: s,
		stage: stage{start: atOnce, waiting: s.waiting, note: func(actor, observed string) {
			told.Record(history.Event{Lane: actor, Kind: history.State, Op: opObserves, Value: observed})
		}},
		told: told,
		rand: rand.New(rand.NewPCG(seed, 0)),
		tag:  o.tag,
	})
	if err != nil {
		return o, err
	}
	reader, err := history.NewReader(&file)
	if err != nil {
		return o, err
	}
	o.Verdict, err = r.judge(func(yield func(history.Event, error) bool) {
		for e, err := range reader.Events() {
			o.events = append(o.events, e)
			if !yield(e, err) {
				return
			}
		}
	})
	return o, err
}
