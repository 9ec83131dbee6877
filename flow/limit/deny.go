package limit

import (
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

const maxDenials = 10_000 // exhausted limits that are cached

// denials caches limits that are exhausted, and until when. They refuse calls without a request. They
// never admit one; a refund by another process takes effect late.
type denials struct {
	mu  sync.Mutex
	all map[unit]denial
}

type denial struct {
	retry, reset time.Time
}

// find refuses a call for an exhausted limit.
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

// note caches an answer. Times count from when the call was sent, so a denial ends before the store
// admits again, not after.
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
