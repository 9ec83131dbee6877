package conformance

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
)

// A stage is one running play.
type stage struct {
	play
	options     Options
	transaction string // also the account
	begun       time.Time
	sent        atomic.Int64
	model       model       // which the participant has matched so far
	results     map[key]any // of each branch's first
	failure     *Failure
}

func newStage(o Options, p play, number int) *stage {
	return &stage{play: p, options: o, transaction: fmt.Sprintf("%s/%s %d%%", o.Prefix, p.protocol, number),
		begun: o.now(), model: newModel(p.protocol, p.capacity), results: map[key]any{}}
}

// perform plays until the first deviation. An error means that the participant cannot be
// judged.
func (s *stage) perform(ctx context.Context) error {
	for i, m := range s.script {
		for range s.times() {
			if err := s.one(ctx, i+1, m); err != nil || s.failure != nil {
				return err
			}
		}
	}
	if len(s.pair) == 0 {
		return nil
	}
	if err := s.atOnce(ctx); err != nil || s.failure != nil {
		return err
	}
	for i, m := range s.pair { // again, to see their state
		if err := s.one(ctx, len(s.script)+i+1, m); err != nil || s.failure != nil {
			return err
		}
	}
	return nil
}

func (s *stage) times() int {
	if s.twice {
		return 2
	}
	return 1
}

// one sends a message and judges its outcome.
func (s *stage) one(ctx context.Context, position int, m message) error {
	got, err := s.send(ctx, m, false)
	if err != nil {
		return err
	}
	effects, err := s.inspect(ctx)
	if err != nil {
		return err
	}
	want, next := s.model.with(m)
	if !got.matches(want) || effects != next.effects() {
		s.fail(position, m, describe(string(want), next.effects()), describe(got.String(), effects))
		return nil
	}
	s.model = next
	s.compare(position, m, got)
	return nil
}

// compare requires the same result of every first of a branch.
func (s *stage) compare(position int, m message, got reply) {
	if m.kind != first || !got.matches(ok) {
		return
	}
	if before, again := s.results[m.to]; again && !reflect.DeepEqual(before, got.result) {
		s.fail(position, m, fmt.Sprintf("the result of the first time, %v", before), fmt.Sprintf("%v", got.result))
		return
	}
	s.results[m.to] = got.result
}

// atOnce sends the pair, and judges its outcome.
func (s *stage) atOnce(ctx context.Context) error {
	var got [2]reply
	var errs [2]error
	var both sync.WaitGroup
	start := make(chan struct{})
	for i, m := range s.pair {
		both.Go(func() {
			<-start
			got[i], errs[i] = s.send(ctx, m, true)
		})
	}
	close(start)
	both.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	effects, err := s.inspect(ctx)
	if err == nil {
		s.judge(got, effects)
	}
	return err
}

// judge requires of a pair the outcome of sending one after the other, in either order.
func (s *stage) judge(got [2]reply, effects Effects) {
	position := len(s.script) + 1
	var wanted []string
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		var want [2]answer
		next := s.model
		for _, i := range order {
			want[i], next = next.with(s.pair[i])
		}
		if got[0].matches(want[0]) && got[1].matches(want[1]) && effects == next.effects() {
			s.model = next
			s.compare(position, s.pair[0], got[0])
			if s.failure == nil {
				s.compare(position+1, s.pair[1], got[1])
			}
			return
		}
		wanted = append(wanted, describe(string(want[0]+" and "+want[1]), next.effects()))
	}
	s.fail(position, s.pair[0], strings.Join(slices.Compact(wanted), " or "), describe(got[0].String()+" and "+got[1].String(), effects))
}

func (s *stage) fail(position int, m message, want, got string) {
	var sequence []branch.Operation
	for _, m := range slices.Concat(s.script, s.pair) {
		sequence = append(sequence, operations[s.protocol][m.kind])
	}
	name := s.name
	if s.twice {
		name = "each twice"
	}
	s.failure = &Failure{Protocol: s.protocol, Play: name, Sequence: sequence, Position: position,
		Operation: operations[s.protocol][m.kind], Expected: want, Got: got}
}
