package memory

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Limiter keeps limits in memory. It is the executable specification of driver.Limiter: each call
// is one step under a mutex, by a clock that is never set back. A limit is removed soon after its
// consumption no longer counts. All limits end with the process.
type Limiter struct {
	mu     sync.Mutex
	begun  time.Time
	limits map[string]limited
	swept  int // how many limits the last sweep left
}

type limited struct {
	state driver.LimitState
	until int64 // end of the consumption that counts
}

var _ driver.LimitInspector = (*Limiter)(nil)

// NewLimiter returns a limiter without consumption. All users of it share its limits.
func NewLimiter() *Limiter { return &Limiter{begun: time.Now(), limits: map[string]limited{}} }

// Take decides calls; see driver.Limiter.
func (l *Limiter) Take(ctx context.Context, calls []driver.LimitCall) []driver.LimitAnswer {
	answers := make([]driver.LimitAnswer, len(calls))
	for i, call := range calls {
		if answers[i].Err = call.Check(); answers[i].Err == nil && ctx.Err() != nil {
			answers[i].Err = fail.Unsent(ctx, "limit", call[0].Key)
		}
		if answers[i].Err == nil {
			answers[i] = l.take(call)
		}
	}
	return answers
}

func (l *Limiter) take(call driver.LimitCall) driver.LimitAnswer {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	states := make([]driver.LimitState, len(call))
	for i, c := range call {
		states[i] = l.limits[c.Key].state
	}
	answer := driver.Decide(now, call, states)
	for i, c := range call {
		if len(states[i]) > 0 {
			l.limits[c.Key] = limited{states[i], now + answer.Decisions[i].ResetAfter.Microseconds()}
		}
	}
	l.sweep(now)
	return answer
}

func (l *Limiter) now() int64 { return l.begun.UnixMicro() + time.Since(l.begun).Microseconds() }

// Limits lists keys; see driver.LimitInspector.
func (l *Limiter) Limits(_ context.Context, prefix string, limit int) (all []driver.StoredLimit, more bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for key, k := range l.limits {
		if strings.HasPrefix(key, prefix) && k.until > now {
			all = append(all, k.stored(key, now))
		}
	}
	slices.SortFunc(all, func(a, b driver.StoredLimit) int { return strings.Compare(a.Key, b.Key) })
	return all[:min(len(all), limit)], len(all) > limit, nil
}

// Limit returns the state of one key.
func (l *Limiter) Limit(_ context.Context, key string) (driver.StoredLimit, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limits[key].stored(key, l.now()), nil
}

func (k limited) stored(key string, now int64) driver.StoredLimit {
	if k.until <= now {
		return driver.StoredLimit{Key: key}
	}
	return driver.StoredLimit{Key: key, State: k.state, ResetAfter: time.Duration(k.until-now) * time.Microsecond}
}

// Reset removes the consumption of a key.
func (l *Limiter) Reset(_ context.Context, key string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.limits[key]
	delete(l.limits, key)
	return ok, nil
}

// sweep removes limits whose consumption no longer counts, once there are twice as many as last
// time.
func (l *Limiter) sweep(now int64) {
	if len(l.limits) < 2*l.swept+1000 {
		return
	}
	for key, k := range l.limits {
		if k.until <= now {
			delete(l.limits, key)
		}
	}
	l.swept = len(l.limits)
}
