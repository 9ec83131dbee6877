package redis

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// keeper renews what one driver holds: one loop, whatever the number of locks.
type keeper struct {
	conn  *conn
	ttl   time.Duration
	wake  chan struct{}
	retry time.Duration // from a failed renewal to the next

	mu    sync.Mutex
	held  map[string]*holding // by owner
	armed boottime.Instant    // when the loop will look next
}

// holding is one lease that is kept alive.
type holding struct {
	request driver.Request
	keys    []string
	lease   *boottime.Lease
	due     boottime.Instant // guarded by keeper.mu

	// mu is held while events are told, so that none is told after the release.
	mu    sync.Mutex
	quiet bool
}

func newKeeper(c *conn, ttl time.Duration) *keeper {
	return &keeper{conn: c, ttl: ttl, wake: make(chan struct{}, 1), retry: min(time.Second, ttl/10),
		held: map[string]*holding{}, armed: never}
}

// add starts to keep the lease that was asked for at sent, and was granted.
func (k *keeper) add(r driver.Request, keys []string, sent boottime.Instant) (*boottime.Lease, error) {
	l := boottime.NewLease(sent, k.ttl)
	if l.Remaining() <= 0 {
		return nil, uncertain(request{op: "acquire", name: r.Name}, interlock.ErrExpired)
	}
	h := &holding{request: r, keys: keys, lease: l, due: sent.Add(k.ttl / 3)}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[r.Owner] = h
	if h.due < k.armed {
		signal(k.wake)
	}
	return l, nil
}

// remove stops renewing, and telling events.
func (k *keeper) remove(owner string) {
	k.mu.Lock()
	h := k.held[owner]
	delete(k.held, owner)
	k.mu.Unlock()
	h.hush()
}

// hush ends the events of what owner has. It goes on being renewed until a
// repeated Acquire adds it anew: if that fails nothing may be told any more, and
// what a renewal under way finds would be told once more to the new holding.
func (k *keeper) hush(owner string) {
	k.mu.Lock()
	h := k.held[owner]
	k.mu.Unlock()
	h.hush()
}

func (h *holding) hush() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.quiet = true
}

func (k *keeper) run(ctx context.Context) { loop(ctx, k.wake, k.next, k.renew) }

func (k *keeper) next() boottime.Instant {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed = never
	for _, h := range k.held {
		k.armed = min(k.armed, h.due)
	}
	return k.armed
}

// due takes what is to be renewed now, and what soon would be, so that requests
// are few. Leases whose time is over are dropped.
func (k *keeper) due(now boottime.Instant) []*holding {
	k.mu.Lock()
	defer k.mu.Unlock()
	var due []*holding
	for owner, h := range k.held {
		switch {
		case h.lease.RemainingAt(now) <= 0:
			delete(k.held, owner)
		case h.due <= now.Add(k.ttl/12):
			due = append(due, h)
		}
	}
	return due
}

// renew extends all leases that are due, in one pipeline.
func (k *keeper) renew(ctx context.Context) {
	due := k.due(boottime.Now())
	if len(due) == 0 {
		return
	}
	chunks := slices.Collect(slices.Chunk(due, batchSize))
	batches := make([]batch, len(chunks))
	for i, chunk := range chunks {
		batches[i] = renewal(chunk, k.ttl)
	}
	bounded, cancel := context.WithTimeout(ctx, min(time.Second, k.ttl/3))
	defer cancel()
	sent := boottime.Now()
	results, err := k.conn.evalAll(bounded, request{op: "renew"}, renewScript, batches)
	if ctx.Err() != nil {
		return
	}
	took := boottime.Now().Sub(sent)
	for i, chunk := range chunks {
		ours, err := renewed(results, i, err)
		k.settle(chunk, sent, took, ours, err)
	}
}

// renewal makes the arguments of one renewing request.
func renewal(chunk []*holding, ttl time.Duration) batch {
	b := batch{args: []string{milliseconds(ttl)}}
	for _, h := range chunk {
		b.keys = append(b.keys, h.keys...)
		b.args = append(b.args, h.request.Owner)
	}
	return b
}

// renewed reads the answer for chunk i: 1 for each lease that is still ours.
func renewed(results []rueidis.RedisResult, i int, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	ours, err := results[i].AsIntSlice()
	return ours, failure(request{op: "renew"}, err)
}

// settle tells what became of the renewal of a chunk.
func (k *keeper) settle(chunk []*holding, sent boottime.Instant, took time.Duration, ours []int64, err error) {
	for i, h := range chunk {
		switch {
		case err != nil:
			k.postpone(h, boottime.Now().Add(k.retry))
			h.tellRenewed(took, err)
		case ours[i] == 1:
			h.lease.Renew(sent, k.ttl)
			k.postpone(h, sent.Add(k.ttl/3))
			h.tellRenewed(took, nil)
		default:
			k.lose(h)
		}
	}
}

func (k *keeper) postpone(h *holding, due boottime.Instant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h.due = due
}

// lose drops a lease that the server gave to somebody else, or has forgotten. It
// is told before, so that a release meanwhile still finds what to hush.
func (k *keeper) lose(h *holding) {
	h.lease.End()
	h.tellLost()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[h.request.Owner] == h {
		delete(k.held, h.request.Owner)
	}
}

// tellLost is the last that is told.
func (h *holding) tellLost() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if tell := h.request.Events.Lost; tell != nil && !h.quiet {
		tell(problem(request{op: "renew", name: h.request.Name}, interlock.Definite, interlock.ErrLost))
	}
	h.quiet = true
}

func (h *holding) tellRenewed(took time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if tell := h.request.Events.Renewed; tell != nil && !h.quiet {
		tell(took, err)
	}
}
