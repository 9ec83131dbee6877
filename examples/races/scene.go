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

// A scene is one run of one twin.
type scene struct {
	systems
	stage
	told *history.Writer
	// rand is drawn from before the actors begin, so that a seed says all.
	rand *rand.Rand
	tag  string
}

// name is what this run works on: of no other run, also with the same seed.
func (s *scene) name(what string) string { return what + "/" + s.tag }

// workers are two to most names.
func (s *scene) workers(most int) []string {
	return []string{"A", "B", "C", "D", "E"}[:2+s.rand.IntN(most-1)]
}

// rounds is an order in which each makes n steps, none the next one before all
// made theirs, and in each round another goes first.
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

// state records what is there before the actors begin, or is found after them.
func (s *scene) state(op, key string, amount int64) {
	s.told.Record(history.Event{Lane: "-", Kind: history.State, Op: op, Key: key, Amount: amount, Stamp: amount})
}

// refused is the end of a call that the guard turned down, for why.
func refused(why string) history.Event { return history.Event{Kind: history.Reject, Value: why} }

// opBelieves is what an actor says at a pause. No checker knows it.
const opBelieves = "believes"

// An outcome is what came of a run.
type outcome struct {
	history.Verdict
	events []history.Event
	tag    string
}

// String is the timeline and the verdict, without what tells runs apart.
func (o outcome) String() string {
	return strings.ReplaceAll(fmt.Sprintf("%s\n%v\n", timeline(o.events), o.Verdict), "/"+o.tag, "")
}

// run plays a twin of r and judges it.
func (r race) run(ctx context.Context, s systems, play twin, seed uint64) (o outcome, err error) {
	var file bytes.Buffer
	told, err := history.NewWriter(&file, history.Header{Run: r.name, Seed: int64(seed)}, nil)
	if err != nil {
		return o, err
	}
	o.tag = crand.Text()[:8]
	err = play(ctx, &scene{
		systems: s,
		stage: stage{start: atOnce, waiting: s.waiting, note: func(actor, believes string) {
			told.Record(history.Event{Lane: actor, Kind: history.State, Op: opBelieves, Value: believes})
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
