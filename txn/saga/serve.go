package saga

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/journal"
)

// server drives the sagas of a shard.
type server struct {
	engine *Engine
	shard  *journal.Shard
	claim  interlock.Claim
	ctx    context.Context // ends with that of Serve, with the claim, or by fail
	fail   context.CancelCauseFunc
	let    func() // lets go of the claim's context
	work   sync.WaitGroup

	mu     sync.Mutex
	active map[string]bool // sagas that are driven, or about to be
	closed bool
}

func newServer(ctx context.Context, e *Engine, claim interlock.Claim, shard *journal.Shard) *server {
	s := &server{engine: e, shard: shard, claim: claim, active: map[string]bool{}}
	ctx, s.let = join.Context(ctx, claim.Context())
	s.ctx, s.fail = context.WithCancelCause(ctx)
	return s
}

// serve takes over what is unfinished, then what becomes due.
func (s *server) serve() error {
	err := s.takeOver()
	for err == nil && s.pause(s.engine.options.Poll) {
		err = s.patrol()
	}
	if cause := context.Cause(s.ctx); cause != nil {
		return cause
	}
	return err
}

// close waits until nothing is driven any more.
func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.fail(interlock.ErrClosed)
	s.work.Wait()
	s.let()
}

// takeOver drives all that has not ended. A store that cannot answer now is asked
// again with the next patrol.
func (s *server) takeOver() error {
	for {
		err := s.unfinished()
		if err == nil || s.lasting(err) || !s.pause(s.engine.options.Poll) {
			return err
		}
	}
}

func (s *server) unfinished() error {
	for head, err := range s.shard.Unfinished(s.ctx) {
		if err != nil {
			s.failed("", err)
			return err
		}
		if !s.start(head.Transaction, false) {
			return nil
		}
	}
	return nil
}

// patrol drives what is due.
func (s *server) patrol() error {
	const most = 100
	for {
		now := s.engine.options.now()
		heads, err := s.shard.Claim(s.ctx, now, now.Add(s.engine.options.Recheck), most)
		if err != nil {
			s.failed("", err)
			if s.lasting(err) {
				return err
			}
			return nil
		}
		for _, head := range heads {
			if !s.start(head.Transaction, true) {
				return nil
			}
		}
		if len(heads) < most {
			return nil
		}
	}
}

// lasting reports whether the shard is not ours any more.
func (s *server) lasting(err error) bool {
	return s.ctx.Err() != nil || errors.Is(err, interlock.ErrStaleToken) || errors.Is(err, interlock.ErrExpired) ||
		interlock.Kind(err) == interlock.Bug
}

// take marks a saga as driven here, unless it is.
func (s *server) take(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.active[id] {
		return false
	}
	s.active[id] = true
	return true
}

func (s *server) release(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.active, id)
}

// admit drives a saga that was taken and begun here: nobody has sent its first step
// yet. One that was not begun is released.
func (s *server) admit(id string, begun bool) {
	if !begun {
		s.release(id)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return // it is left to the next owner
	}
	d := &drive{server: s, id: id, fresh: true}
	s.work.Go(d.run)
}

// start drives a saga, unless it is driven already, once there is a slot: so no more
// of them are read than can be driven. It is false when the server ends.
func (s *server) start(id string, due bool) bool {
	if !s.take(id) {
		return s.ctx.Err() == nil
	}
	if !s.enter() {
		s.release(id)
		return false
	}
	d := &drive{server: s, id: id, due: due, inside: true}
	s.work.Go(d.run)
	return true
}

// holds says why nothing may be called any more. After a stop of the process this
// can be known before the contexts have ended.
func (s *server) holds() error {
	if s.ctx.Err() == nil && !s.claim.Valid() {
		s.fail(interlock.ErrExpired)
	}
	return context.Cause(s.ctx)
}

// enter waits for a slot; leave gives it back.
func (s *server) enter() bool {
	select {
	case s.engine.slots <- struct{}{}:
		return true
	case <-s.ctx.Done():
		return false
	}
}

func (s *server) leave() { <-s.engine.slots }

// pause waits, unless the server ends.
func (s *server) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return s.ctx.Err() == nil
	case <-s.ctx.Done():
		return false
	}
}

// failed tells of what went wrong beside the calls.
func (s *server) failed(id string, err error) {
	if f := s.engine.options.Hooks.Failed; f != nil && s.ctx.Err() == nil {
		f(observe.SagaFailed{Saga: id, Shard: s.shard.Number(), Err: err})
	}
}
