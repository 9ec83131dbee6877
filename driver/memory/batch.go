package memory

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

var _ driver.Batch = (*Driver)(nil)

var errNotDistinct = errors.New("names and owners are required, each once")

// AcquireAll acquires all names in one step of the space, or none; see
// driver.Batch.
func (d *Driver) AcquireAll(ctx context.Context, requests []driver.Request) ([]driver.Grant, error) {
	if ctx.Err() != nil {
		return nil, fail.Unsent(ctx, "acquire all", "")
	}
	if !driver.Distinct(requests) {
		return nil, fail.New("acquire all", "", interlock.Bug, errNotDistinct)
	}
	calls := make([]*call, len(requests))
	for i, r := range requests {
		var err error
		if calls[i], err = d.begin(r); err != nil {
			d.forgetAll(requests[:i])
			return nil, err
		}
	}
	sent := boottime.Sent()
	counters, err := d.space.arriveAll(calls, d.ttl)
	if err != nil {
		d.forgetAll(requests)
		return nil, err
	}
	grants := make([]driver.Grant, len(calls))
	for i, c := range calls {
		if grants[i], err = d.granted(c, sent, counters[i]); err != nil {
			return nil, err
		}
	}
	return grants, nil
}

func (d *Driver) forgetAll(requests []driver.Request) {
	for _, r := range requests {
		d.forget(r.Owner)
	}
}

// arriveAll returns the counters of all calls, or the holder of one of the names.
func (s *Space) arriveAll(calls []*call, ttl time.Duration) ([]int64, error) {
	s.mu.Lock()
	defer s.unlock()
	now := boottime.Now()
	wanted := make([]claimant, len(calls))
	for i, c := range calls {
		wanted[i] = claimant{c.req.Name, c.req.Owner}
	}
	counters, barrier, effects := s.table.arriveAll(now, wanted, now.Add(ttl))
	s.notify(effects)
	if barrier != nil {
		return nil, heldBy(now, barrier)
	}
	for _, c := range calls {
		s.table.find(c.req.Name, c.req.Owner).expires = now.Add(c.req.Lease(ttl))
	}
	return counters, nil
}

func heldBy(now boottime.Instant, h *contender) error {
	return &interlock.HeldError{Name: h.name, Owner: h.owner, Since: wall(now, h.since), Until: wall(now, h.expires)}
}
