package sequence

import (
	"container/heap"
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
)

// result is the outcome of one call.
type result struct {
	outcome Outcome // of the offer
	err     error   // of the offer
	failed  error   // the first failure of anything else
}

// offer passes an event to the machine of a key; late means that it was fetched and came late. The lock
// of the key is held, as in the functions below.
func (s *Sequencer[T]) offer(ctx context.Context, k *entry, e Event, late bool) (Outcome, error) {
	r := s.step(ctx, k, input{kind: offer, event: e, late: late, room: s.reserve(k, e)})
	return r.outcome, r.err
}

// step passes an input to a machine and carries out its effects until there are none.
func (s *Sequencer[T]) step(ctx context.Context, k *entry, in input) (r result) {
	for {
		effects := k.machine.Step(s.now(), in)
		for _, e := range effects {
			s.note(k, e, &r)
		}
		if k.machine.doing == nil {
			return r
		}
		in = s.operate(ctx, k, *k.machine.doing)
	}
}

// operate carries out an operation and returns its outcome.
func (s *Sequencer[T]) operate(ctx context.Context, k *entry, e effect) input {
	in := input{kind: done}
	hand := s.hand(e, e.offered && !k.machine.foreign, &in.began)
	switch e.kind {
	case load:
		in.state, in.err = s.store.Load(ctx, s.stream, k.key)
	case open:
		hole := e.hole
		in.err = s.store.Advance(ctx, Move{Stream: s.stream, Key: k.key, From: k.machine.last,
			To: Position{hole.Epoch, hole.To}, Hole: &hole}, func(context.Context, T) error { return nil })
	case fill:
		in.state, in.err = s.store.Fill(ctx, s.stream, k.key, e.events[0].Position, hand)
	case deliver:
		in.err = s.store.Advance(ctx, Move{Stream: s.stream, Key: k.key, From: k.machine.last,
			To: e.events[len(e.events)-1].Position}, hand)
	}
	return in
}

// hand returns the function that passes events to the handler. called reports that there is a caller to receive a panic.
func (s *Sequencer[T]) hand(e effect, called bool, began *bool) func(context.Context, T) error {
	return func(ctx context.Context, in T) (err error) {
		*began = true
		if !called {
			defer contain(e.events[0].Key, &err)
		}
		for _, event := range e.events {
			if err := s.handler(ctx, in, Delivery{Event: event, Late: e.kind == fill}); err != nil {
				return err
			}
		}
		return nil
	}
}

// note carries out an effect that is not an operation.
func (s *Sequencer[T]) note(k *entry, e effect, r *result) {
	hooks := s.options.Observe
	switch e.kind {
	case answer:
		r.outcome, r.err = e.outcome, e.err
		s.observeEvent(e)
	case settle:
		if x, ok := e.events[0].Handle.(*flight); ok {
			x.settled()
		}
		s.options.Settled(e.events[0], e.outcome)
		s.observeEvent(e)
	case fetch:
		s.beginFetch(e.hole)
	case noteGap:
		s.observeGap(hooks.Gap, e)
	case noteOverdue:
		s.observeGap(hooks.Overdue, e)
	case noteRecorded:
		s.observeGap(hooks.Recorded, e)
	case noteHalted:
		s.observeGap(hooks.Halted, e)
	case noteFailed:
		if r.failed == nil {
			r.failed = e.err
		}
		if hooks.Failed != nil {
			hooks.Failed(observe.SequenceFailed{Stream: s.stream, Key: k.key, Failures: k.machine.failures, Err: e.err})
		}
	}
}

func (s *Sequencer[T]) observeGap(hook func(observe.SequenceGap), e effect) {
	if hook != nil {
		hook(observe.SequenceGap{Stream: s.stream, Key: e.hole.Key, Epoch: e.hole.Epoch, From: e.hole.From, To: e.hole.To, Waited: e.waited})
	}
}

func (s *Sequencer[T]) observeEvent(e effect) {
	hook := s.options.Observe.Dropped
	if e.outcome == Late {
		hook = s.options.Observe.Late
	}
	if hook == nil || e.outcome != Late && e.outcome != Duplicate && e.outcome != Stale {
		return
	}
	about := e.events[0]
	hook(observe.SequenceEvent{Stream: s.stream, Key: about.Key, Epoch: about.Epoch, Seq: about.Seq, Stale: e.outcome == Stale})
}

// tend works on due keys until the sequencer is closed.
func (s *Sequencer[T]) tend() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		for k := s.nextDue(timer); k != nil; k = s.nextDue(timer) {
			select {
			case <-s.ctx.Done():
				s.forget(k)
				return
			case s.turns <- struct{}{}:
				go s.tick(k) // counted as work by nextDue
			}
		}
	}
}

// nextDue returns a due key, for one more user. If there is none, it returns nil and sets timer for the
// next.
func (s *Sequencer[T]) nextDue(timer *time.Timer) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.due) == 0 {
		return nil
	}
	k := s.due[0]
	if left := k.due.Sub(s.now()); left > 0 {
		timer.Reset(left)
		return nil
	}
	heap.Pop(&s.due)
	k.tended = true
	s.work.Add(1)
	return s.entry(k.key)
}

// tick passes the time to the machine of a key.
func (s *Sequencer[T]) tick(k *entry) {
	defer func() { <-s.turns }()
	ctx, cancel := context.WithTimeout(s.ctx, s.options.Timeout)
	defer cancel()
	select {
	case k.lock <- struct{}{}:
		defer s.leave(k) // schedules it
		s.release(k)
		s.step(ctx, k, input{kind: tick})
	case <-ctx.Done(): // others use the key all the time
		s.release(k)
		s.mu.Lock()
		if k.at < 0 {
			s.schedule(k, k.due)
		}
		s.mu.Unlock()
		s.forget(k)
	}
}

// release permits the key to be scheduled again.
func (s *Sequencer[T]) release(k *entry) {
	s.mu.Lock()
	k.tended = false
	s.mu.Unlock()
}

// beginFetch asks the source, concurrently.
func (s *Sequencer[T]) beginFetch(missing Hole) {
	s.work.Add(1) // the count is above 0: the caller has one
	go func() {
		defer s.work.Done()
		ctx, cancel := context.WithTimeout(s.ctx, s.options.FetchWait)
		defer cancel()
		select {
		case s.fetches <- struct{}{}:
		case <-ctx.Done(): // others take too long; the machine continues by itself
			return
		}
		events, err := s.fetch(ctx, missing)
		s.take(missing, events, err)
	}()
}

func (s *Sequencer[T]) fetch(ctx context.Context, missing Hole) (events []Event, err error) {
	defer func() { <-s.fetches }() // also if Fetch ends the goroutine
	defer contain(missing.Key, &err)
	return s.options.Fetch(ctx, missing)
}

// take passes fetched events to a machine. If they come too late, it offers them.
func (s *Sequencer[T]) take(missing Hole, events []Event, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.options.Timeout)
	defer cancel()
	k, closed := s.enter(ctx, "take fetched events", missing.Key)
	if closed != nil {
		return
	}
	defer s.leave(k)
	if err != nil {
		s.note(k, effect{kind: noteFailed, err: &interlock.Error{Op: "fetch events", Name: missing.Key, Kind: interlock.Kind(err), Err: err}}, &result{})
	}
	asked := events[:0:0]
	for _, e := range events {
		if e.Key == missing.Key && missing.has(e.Position) {
			asked = append(asked, e)
		}
	}
	if k.machine.awaits(missing) {
		s.step(ctx, k, input{kind: fetched, events: asked})
		return
	}
	for _, e := range asked {
		if _, err := s.offer(ctx, k, e, true); err != nil { // it stays missing, and its hole open
			s.note(k, effect{kind: noteFailed, err: err}, &result{})
		}
	}
}
