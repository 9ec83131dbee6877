package limit

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// A Lease takes units of one limit in advance, and gives them out without asking the store. If all
// processes use leases for the key, they admit at most Burst + Count·t/Period together in any
// interval t, as without leases. Calls may be refused while other processes have units that they
// do not use. It is safe for concurrent use.
//
// The store admits Burst/2 + Count·t/Period. The other half of the burst is how long units live:
// life = Burst/2·Period/Count from when they were asked for. What is admitted in an interval was
// taken in it or within life before it, which is Burst/2 + Count·(t+life)/Period: the bound.
type Lease struct {
	limits *Limits
	key    string
	rate   Rate // that of the store
	life   time.Duration

	mu      sync.Mutex
	units   int64
	sent    boottime.Instant // when they were asked for
	next    int64            // how many to ask for
	asking  *asking          // nil without a request under way
	closed  bool
	running sync.WaitGroup
}

// asking is a request for units.
type asking struct {
	done    chan struct{}
	allowed bool
	err     error
}

// Lease makes a lease of a GCRA rate with a burst of at least 2. It asks for nothing yet.
func (l *Limits) Lease(key string, r Rate) (*Lease, error) {
	if err := (Charge{Key: key, Rate: r}).Check(); err != nil {
		return nil, err
	}
	if r.Algorithm != GCRA || r.Capacity() < 2 {
		return nil, impossible("a lease needs GCRA and a burst of at least 2, not %+v", r)
	}
	store := r
	store.Burst = (r.Capacity() + 1) / 2
	life := time.Duration(float64(r.Capacity()-store.Burst) / float64(r.Count) * float64(r.Period))
	return &Lease{limits: l, key: key, rate: store, life: life, next: 1}, nil
}

// Allow takes one unit. It waits only for the store, if there are no units here.
func (s *Lease) Allow(ctx context.Context) (bool, error) {
	for {
		a, ok, err := s.take()
		if ok || err != nil {
			return ok, err
		}
		select {
		case <-a.done:
			if !a.allowed {
				return false, a.err
			}
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// take takes a unit that is here, or returns the request for more.
func (s *Lease) take() (*asking, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, &interlock.Error{Op: "limit", Name: s.key, Kind: interlock.Bug, Err: interlock.ErrClosed}
	}
	if s.units > 0 && s.age() < s.life {
		s.units--
		return nil, true, nil
	}
	if s.asking == nil {
		s.asking = &asking{done: make(chan struct{})}
		n := s.size()
		s.running.Go(func() { s.ask(n) })
	}
	return s.asking, false, nil
}

func (s *Lease) age() time.Duration { return boottime.Now().Sub(s.sent) }

// size is how many units to ask for: twice as many if the last were used in a quarter of their
// life, half as many if they were not used.
func (s *Lease) size() int64 {
	switch {
	case s.units > 0:
		s.next = max(1, s.next/2)
	case s.age() < s.life/4:
		s.next = min(2*s.next, s.rate.Capacity())
	}
	s.units = 0
	return s.next
}

// ask asks for n units. No caller's context ends it: callers stop waiting.
func (s *Lease) ask(n int64) {
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	sent := boottime.Sent()
	d, err := s.limits.Take(ctx, Charge{Key: s.key, Rate: s.rate, Cost: n, Least: 1})
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.asking
	if a.allowed, a.err = d.Allowed, err; d.Allowed {
		s.units, s.sent = d.Granted, sent
	}
	s.asking = nil
	close(a.done)
}

// Close gives back the units that are left, but for those that have drained since. Further calls
// fail. If ctx ends first they are lost.
func (s *Lease) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	s.mu.Lock()
	drained := int64(float64(s.age())*float64(s.rate.Count)/float64(s.rate.Period)) + 1
	left := s.units - drained
	s.units = 0
	s.mu.Unlock()
	if left <= 0 {
		return nil
	}
	return s.limits.Refund(ctx, s.key, s.rate, left)
}
