package limit

import (
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// maxDenials is how many exhausted limits are remembered.
const maxDenials = 10_000

// denials are limits of which no unit is left, until when. To refuse a call by them admits
// nothing that the store would not; a unit that another process gives back is seen late.
type denials struct {
	mu  sync.Mutex
	all map[unit]denial
}

type denial struct {
	retry, reset time.Time
}

// find refuses a call that wants a unit of a limit without any.
func (d *denials) find(call driver.LimitCall) ([]driver.Decision, bool) {
	if len(call) > 1 || call[0].Cost <= 0 {
		return nil, false
	}
	d.mu.Lock()
	known, ok := d.all[unit{call[0].Key, call[0].Rate}]
	d.mu.Unlock()
	if !ok {
		return nil, false
	}
	now := time.Now()
	if !now.Before(known.retry) {
		return nil, false
	}
	return []driver.Decision{{RetryAfter: known.retry.Sub(now), ResetAfter: max(0, known.reset.Sub(now))}}, true
}

// note remembers an answer. The times count from when the call was sent, so they are over before
// the store admits again, and not after it.
func (d *denials) note(call driver.LimitCall, a driver.LimitAnswer, sent time.Time) {
	if len(call) > 1 || call[0].Cost == 0 {
		return
	}
	c, x := call[0], a.Decisions[0]
	exhausted := !x.Allowed && x.Remaining == 0 && (c.Cost == 1 || c.Least == 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !exhausted {
		if len(d.all) > 0 {
			delete(d.all, unit{c.Key, c.Rate})
		}
		return
	}
	if d.all == nil || len(d.all) >= maxDenials {
		d.all = map[unit]denial{}
	}
	d.all[unit{c.Key, c.Rate}] = denial{sent.Add(x.RetryAfter), sent.Add(x.ResetAfter)}
}
