package limit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// A Lease takes units of one limit in advance, and admits calls by them without a request. If all
// processes use leases for the key, they together admit at most Burst + Count·t/Period in any interval
// t, as without leases. Calls may be refused while other processes have unused units. It is safe for
// concurrent use.
//
// The store admits Burst/2 + Count·t/Period. The other half of the burst is the lifetime of units:
// life = Burst/2·Period/Count from the request. Units admitted in an interval were taken in it or
// within life before it, which is Burst/2 + Count·(t+life)/Period: the bound.
type Lease struct {
	limits *Limits
	key    string
	rate   Rate // that of the store
	life   time.Duration

	last atomic.Pointer[grant] // nil before the first

	mu      sync.Mutex
	next    int64   // units to request
	asking  *asking // the request in progress, or nil
	closed  bool
	running sync.WaitGroup
}

// grant is the answer to one request for units.
type grant struct {
	units atomic.Int64 // left; negative means none
	sent  boottime.Instant
	at    time.Time // the same time, by clocks that are fast to read
	retry time.Time // of a refusal: until when not to ask again

	counted bool // by the store, which has not counted units of the failure policy or the shadow mode
}

// take takes a unit that is not too old. It reads the age after it has taken the unit.
func (g *grant) take(life time.Duration) bool {
	return g.units.Load() > 0 && g.units.Add(-1) >= 0 && g.isYounger(life)
}

const step = time.Millisecond // a larger difference of two clocks means that one was set

// isYounger reports whether the grant is younger than life. The monotonic clock stops while the machine
// is suspended, the wall clock does not. If both agree, there was no suspension; if not, it asks the
// kernel, which takes five times as long.
func (g *grant) isYounger(life time.Duration) bool {
	now := time.Now()
	age := now.Sub(g.at)
	if set := now.Round(0).Sub(g.at.Round(0)) - age; set > step || set < -step {
		age = boottime.Now().Sub(g.sent)
	}
	return age < life
}

// asking is a request for units.
type asking struct {
	done    chan struct{}
	allowed bool
	late    bool // the units were too old when they arrived
	err     error

	reported atomic.Bool // a caller has been refused
}

const maxLate = 3 // late answers in one call

// Lease returns a lease of a GCRA rate with a burst of at least 2. It sends no request yet.
func (l *Limits) Lease(key string, r Rate) (*Lease, error) {
	if err := (Charge{Key: key, Rate: r}).Check(); err != nil {
		return nil, err
	}
	if r.Algorithm != GCRA || r.Capacity() < 2 {
		return nil, invalid("a lease needs GCRA and a burst of at least 2, not %+v", r)
	}
	store := r
	store.Burst = (r.Capacity() + 1) / 2
	life := time.Duration(float64(r.Capacity()-store.Burst) / float64(r.Count) * float64(r.Period))
	return &Lease{limits: l, key: key, rate: store, life: life, next: 1}, nil
}

// Allow takes one unit. If the lease has units, that is one atomic operation and a read of the clock; if
// not, it waits for the store. If the store answers later than units live, several times, the error is
// Retryable: use a larger burst.
func (s *Lease) Allow(ctx context.Context) (bool, error) {
	for late := 0; ; {
		if g := s.last.Load(); g != nil {
			if g.take(s.life) {
				return true, nil
			}
			if !g.retry.IsZero() && time.Now().Before(g.retry) {
				s.limits.refused(s.key)
				return false, nil
			}
		}
		a, err := s.ask()
		if err != nil {
			return false, err
		}
		select {
		case <-a.done:
			if a.late {
				late++
			}
			switch {
			case !a.allowed:
				if a.err == nil && a.reported.Swap(true) { // the store's answer was reported once
					s.limits.refused(s.key)
				}
				return false, a.err
			case late == maxLate:
				return false, &interlock.Error{Op: "limit", Name: s.key, Kind: interlock.Retryable,
					Err: fmt.Errorf("the store answers later than the units of this lease live, %v: use a larger burst", s.life)}
			}
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// ask returns the request in progress, or starts one.
func (s *Lease) ask() (*asking, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, &interlock.Error{Op: "limit", Name: s.key, Kind: interlock.Bug, Err: interlock.ErrClosed}
	}
	if g := s.last.Load(); s.asking == nil && g != nil && g.units.Load() > 0 && g.isYounger(s.life) {
		a := &asking{done: make(chan struct{}), allowed: true} // it was answered meanwhile
		close(a.done)
		return a, nil
	}
	if s.asking == nil {
		s.asking = &asking{done: make(chan struct{})}
		n := s.size()
		s.running.Go(func() { s.request(n) })
	}
	return s.asking, nil
}

// size returns how many units to request: twice as many if the last ones were used within a quarter of
// their life, half as many if they were not used.
func (s *Lease) size() int64 {
	switch g := s.last.Load(); {
	case g == nil || !g.retry.IsZero():
	case g.units.Swap(0) > 0:
		s.next = max(1, s.next/2)
	case boottime.Now().Sub(g.sent) < s.life/4:
		s.next = min(2*s.next, s.rate.Capacity())
	}
	return s.next
}

// request requests n units. The contexts of callers do not end it: callers stop waiting.
func (s *Lease) request(n int64) {
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	g := &grant{sent: boottime.Sent(), at: time.Now()}
	call := driver.LimitCall{{Key: s.key, Rate: s.rate, Cost: n, Least: 1}}
	d, counted, err := s.limits.decide(ctx, call)
	if err != nil && ctx.Err() != nil { // no caller has ended it
		d, err = s.limits.failed(context.Background(), call, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.asking
	a.allowed, a.err, a.late = d.Allowed, err, !g.isYounger(s.life)
	if d.Allowed {
		g.units.Store(d.Granted)
		g.counted = counted > 0
	} else {
		g.retry = g.at.Add(min(d.RetryAfter, maxDenial))
	}
	if err == nil {
		s.last.Store(g)
	}
	s.asking = nil
	close(a.done)
}

// refundTimeout bounds the request of Close. Units that drain until then are not refunded, because others
// may take them before the refund arrives.
const refundTimeout = time.Second

// Close refunds unused units, except for those that will have drained a second later. Further calls of
// Allow fail. If the store does not answer within a second, or ctx ends first, Close returns an error and
// the units are lost. If the store executes that refund later, others may be admitted what has drained
// meanwhile once more. Close first waits for a request in progress, at most 10 s.
func (s *Lease) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	g := s.last.Swap(&grant{})
	if g == nil || !g.counted {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, refundTimeout)
	defer cancel()
	drained := int64(float64(boottime.Now().Sub(g.sent)+refundTimeout)*float64(s.rate.Count)/float64(s.rate.Period)) + 1
	left := g.units.Swap(0) - drained
	if left <= 0 {
		return nil
	}
	return s.limits.Refund(ctx, s.key, s.rate, left)
}
