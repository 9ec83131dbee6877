package outbox

import (
	"context"
	"fmt"
	"math"
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
		if !backoff.Sleep(ctx, pause.Delay(failed, s.options.random())) {
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
	backoff.Sleep(life, d)
	return nil
}

// rest is how many times MaxPoll a service waits at most before it looks without a wake. What
// watch does not see can wait for so long.
const rest = 60

// lull returns how long an idle service waits unless it is woken: until next, when a lane is due,
// if one is known. If next has passed, the database's clock is behind, and the wait doubles.
func (o Options) lull(next, now time.Time) time.Duration {
	most := min(o.MaxPoll, math.MaxInt64/rest) * rest
	switch until := next.Sub(now); {
	case next.IsZero():
		return most
	case until > 0:
		return min(until+time.Millisecond, most)
	default:
		return min(max(-until, o.MinPoll), most)
	}
}

// pause is sleep that a wake ends.
func (s *service) pause(ctx context.Context, d time.Duration) bool {
	defer s.wait(s)()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.awake:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
