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

// maxOutages is how often in a row the relay waits for a sink that seems to be unavailable. After
// that, failures count for each message.
const maxOutages = 3

// closing bounds the last settlement, after Options.Drain.
const closing = 5 * time.Second

// persist retries an operation while its error is retryable and the claim is valid.
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

// waitForSink waits for a sink that seems to be unavailable.
func (s *service) waitForSink(life context.Context, first error) error {
	s.outages++
	d := max(s.judge.retry.Delay(s.outages, s.options.random()), min(retryAfter(first), s.judge.retry.Max))
	d = min(d, time.Second)
	if f := s.options.Hooks.Paused; f != nil {
		f(observe.OutboxPaused{Slice: s.slice, For: d, Err: first})
	}
	backoff.Sleep(life, d)
	return nil
}

// rest is the number of MaxPoll after which a waiting service looks without a wake, for what watch
// cannot see.
const rest = 60

// lull returns how long an idle service waits unless it is woken: until next, when a lane is due, if
// that is known. If next has passed, the clock of the database is behind, and the wait doubles.
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

// pause is a sleep that a wake ends.
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
