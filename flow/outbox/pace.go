package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/observe"
)

// blips is how often in a row a sink that seems to be away is waited for before
// messages are made to wait one by one.
const blips = 3

// closing is how long the last settlement may take after the sink was waited for.
const closing = 5 * time.Second

// persist repeats what failed and may be repeated, as long as the claim is valid.
func (s *service) persist(ctx context.Context, op string, do func() error) error {
	pause := backoff.Policy{First: 20 * time.Millisecond, Max: 5 * time.Second}
	for failed := 1; ; failed++ {
		err := do()
		kind := interlock.Kind(err)
		if err == nil || kind == interlock.Definite || kind == interlock.Bug || ctx.Err() != nil || !s.claim.Valid() {
			return err
		}
		if f := s.options.Hooks.Trouble; f != nil {
			f(observe.OutboxTrouble{Slice: s.slice, Op: op, Err: err})
		}
		if !s.sleep(ctx, pause.Delay(failed, s.options.random())) {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// blip waits for a sink that seems to be away.
func (s *service) blip(life context.Context, first error) error {
	s.away++
	d := max(s.judge.retry.Delay(s.away, s.options.random()), min(wished(first), s.judge.retry.Max))
	d = min(d, time.Second)
	if f := s.options.Hooks.Paused; f != nil {
		f(observe.OutboxPaused{Slice: s.slice, For: d, Err: first})
	}
	s.sleep(life, d)
	return nil
}

// lull is how long not to look when there was nothing: longer each time, but no
// longer than until a lane is due. One that is due by this process's clock, and not yet
// by the database's, is looked for as if there had been something.
func (s *service) lull() time.Duration {
	until := s.next.Sub(s.options.now())
	if !s.next.IsZero() && until <= 0 {
		s.next, s.idle = time.Time{}, 0
	}
	d := s.options.MinPoll
	for range s.idle {
		if d *= 2; d >= s.options.MaxPoll {
			d = s.options.MaxPoll
			break
		}
	}
	s.idle++
	if s.next.IsZero() {
		return d
	}
	return min(d, until+time.Millisecond)
}

// pause is sleep that a wake ends.
func (s *service) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.awake:
		s.idle = 0
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// sleep reports whether ctx still lasts.
func (s *service) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
