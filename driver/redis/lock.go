package redis

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/renewal"
)

// Modes of contend.lua.
const (
	enqueue = "enqueue"
	noWait  = "nowait"
	refresh = "refresh"
	// together is the mode of AcquireAll.
	together = "together"
)

// Acquire waits until r.Owner holds r.Name; see driver.Fenced.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	lock, err := d.layout.key(r.Name, r.Owner)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := d.evicts.permit(ctx, request{op: "acquire", name: r.Name}, whenever); err != nil {
		return driver.Grant{}, err
	}
	d.held.StopEvents(r.Owner)
	w := d.waiting.enter(r, lock)
	defer d.waiting.leave(w)
	mode := enqueue
	if r.NoWait {
		mode = noWait
	}
	for {
		sent := boottime.Sent()
		reply, err := d.contend(ctx, w, mode)
		if err != nil {
			return driver.Grant{}, err
		}
		switch reply.status {
		case statusGranted:
			return d.granted(w, w.grantedAt(sent, reply.counter, d.ttl))
		case statusHeld:
			return driver.Grant{}, reply.heldError(r.Name)
		case statusWaiting:
			d.waiting.recordPlace(w, sent, reply)
		case statusGone:
			mode = enqueue
			continue
		}
		n, err := d.waiting.await(ctx, w)
		switch {
		case err != nil:
			return driver.Grant{}, err
		case n.granted && boottime.Deadline(n.sent, n.lease) > boottime.Now():
			return d.granted(w, n)
		}
		mode = n.mode
	}
}

// granted adds the lease that w was granted to those that are renewed.
func (d *Driver) granted(w *waiter, n wakeup) (driver.Grant, error) {
	token, err := interlock.NewToken(n.counter, 0)
	if err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Lease: d.held.AddFor(w.request, n.sent, n.lease, n.due), Token: token}, nil
}

// Release ends the grant or the wait of owner on name; see driver.Fenced.
func (d *Driver) Release(ctx context.Context, name, owner string) error {
	lock, err := d.layout.key(name, owner)
	if err != nil {
		return err
	}
	d.held.Remove(owner)
	words := []string{lock, d.pushes.channel, owner}
	_, err = d.conn.eval(ctx, request{op: "release", name: name, owner: owner}, releaseScript,
		batch{keys: words[:1], args: words[1:]})
	return err
}

// contention returns the arguments of one request for several contenders.
func (d *Driver) contention(mode string, chunk ...*waiter) batch {
	b := batch{keys: make([]string, 0, len(chunk)), args: make([]string, 0, 2+2*len(chunk))}
	b.args = append(b.args, mode, d.pushes.channel)
	for _, w := range chunk {
		b.keys = append(b.keys, w.keys[0])
		b.args = append(b.args, w.request.Owner, milliseconds(w.request.Lease(d.ttl)))
	}
	return b
}

// contend sends a request for one name. Only the goroutine of w may call it.
func (d *Driver) contend(ctx context.Context, w *waiter, mode string) (reply, error) {
	w.args = [...]string{mode, d.pushes.channel, w.request.Owner, milliseconds(w.request.Lease(d.ttl))}
	m, err := d.conn.eval(ctx, w.operation(), contendScript, batch{keys: w.keys[:], args: w.args[:]})
	if err != nil {
		return reply{}, err
	}
	answer, err := parseReply(m)
	switch {
	case err != nil:
		return reply{}, uncertain(w.operation(), err)
	case answer.status == statusFailed:
		return reply{}, answer.failure(w.operation())
	}
	return answer, nil
}

// newKeeper returns what renews leases. Their confirmation may take some time.
func newKeeper(extend func(context.Context, []*renewal.Holding) []renewal.Extension, ttl time.Duration, s Settings) *renewal.Keeper {
	bound := time.Second
	if s.Fsync {
		bound = silence + fsyncFor
	}
	return renewal.New(renewal.Config{Driver: "redis", TTL: ttl, Bound: min(bound, ttl/3), Extend: extend})
}

// extend extends leases, all in one pipeline.
func (k *keyspace) extend(ctx context.Context, due []*renewal.Holding) []renewal.Extension {
	r := request{op: "renew"}
	parts := chunks(k.layout, due, k.layout.held)
	results, err := k.conn.evalAll(ctx, r, renewScript, k.layout.renewals(parts, k.ttl))
	found := make(map[*renewal.Holding]renewal.Extension, len(due))
	for i, part := range parts {
		answers, err := integers(r, results, i, len(part), err)
		for j, h := range part {
			found[h] = renewal.Extension{Ours: err == nil && answers[j] == 1, Err: err}
		}
	}
	extensions := make([]renewal.Extension, len(due))
	for i, h := range due {
		extensions[i] = found[h]
	}
	return extensions
}

// held returns the key of a lock that is held.
func (l layout) held(h *renewal.Holding) string { return l.prefix + h.Name }

// renewals returns the arguments of renewals, a batch for each part.
func (l layout) renewals(parts [][]*renewal.Holding, ttl time.Duration) []batch {
	var batches []batch
	for _, part := range parts {
		var b batch
		for _, h := range part {
			b.keys = append(b.keys, l.held(h))
			b.args = append(b.args, h.Owner, milliseconds(h.Lease(ttl)))
		}
		batches = append(batches, b)
	}
	return batches
}

// integers reads the answer to batch i, which has n numbers.
func integers(r request, results []rueidis.RedisResult, i, n int, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	numbers, err := results[i].AsIntSlice()
	if err == nil && len(numbers) != n {
		err = errReply
	}
	return numbers, failure(r, err)
}

// waiters holds the Acquire calls of one process, and the state of the loop that
// sends their heartbeats.
type waiters struct {
	d    *Driver
	wake chan struct{}

	mu     sync.Mutex
	all    map[string]*waiter // by owner
	armed  boottime.Instant   // when the loop runs next
	closed bool
}

// waiter is one Acquire under way.
type waiter struct {
	request driver.Request
	keys    [1]string // the lock
	args    [4]string // of the last request of contend

	mu     sync.Mutex
	unread bool
	latest wakeup        // if unread
	woken  chan struct{} // has an entry if unread; nil until the first read

	// Guarded by waiters.mu.
	due       boottime.Instant // of the next heartbeat; renewal.Never until there is a place
	answered  boottime.Instant // when the latest answered request was sent
	place     int64            // the latest place in an answer; 0 if none
	placeSent boottime.Instant // when the latest request answered with place was sent

	// reporting is held while Events.Waiting is called, so that it is not called
	// after Acquire has returned.
	reporting sync.Mutex
	reported  *driver.Place
	left      bool
}

// wakeup ends the wait of an Acquire: a grant, an error, or a reason to ask again.
type wakeup struct {
	granted bool
	sent    boottime.Instant // a time before the grant
	counter int64
	lease   time.Duration    // of the grant
	due     boottime.Instant // when to renew it

	mode string // of the next request, if the grant has ended meanwhile
	err  error
}

func newWaiters(d *Driver) *waiters {
	return &waiters{d: d, wake: make(chan struct{}, 1), all: map[string]*waiter{}, armed: renewal.Never}
}

func newWaiter(r driver.Request, lock string) *waiter {
	return &waiter{request: r, keys: [1]string{lock}, due: renewal.Never}
}

// enter registers the waiter before its first request is sent, because a push may
// arrive before the answer.
func (ws *waiters) enter(r driver.Request, lock string) *waiter {
	w := newWaiter(r, lock)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.all[r.Owner] = w
	if ws.closed {
		w.notify(wakeup{err: w.closed()})
	}
	return w
}

func (ws *waiters) leave(w *waiter) {
	ws.mu.Lock()
	if ws.all[w.request.Owner] == w {
		delete(ws.all, w.request.Owner)
	}
	ws.mu.Unlock()
	w.reporting.Lock()
	w.left = true
	w.reporting.Unlock()
}

// operation describes w in errors.
func (w *waiter) operation() request {
	return request{op: "acquire", name: w.request.Name, owner: w.request.Owner}
}

func (w *waiter) closed() error { return uncertain(w.operation(), interlock.ErrClosed) }

// closeAll ends every Acquire under way.
func (ws *waiters) closeAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.closed = true
	for _, w := range ws.all {
		w.notify(wakeup{err: w.closed()})
	}
}

// notify stores n and wakes the waiter. Only an error replaces an unread wakeup:
// after reading any, the waiter asks again and finds the rest.
func (w *waiter) notify(n wakeup) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.unread || n.err != nil {
		w.unread, w.latest = true, n
	}
	if w.woken != nil {
		hints.Signal(w.woken)
	}
}

// await waits for a wakeup of w.
func (ws *waiters) await(ctx context.Context, w *waiter) (wakeup, error) {
	for {
		n, woken, unread := w.read()
		if unread {
			return n, n.err
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return wakeup{}, uncertain(w.operation(), context.Cause(ctx))
		}
	}
}

// read returns an unread wakeup, or a channel that signals the next.
func (w *waiter) read() (n wakeup, woken <-chan struct{}, unread bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.woken == nil {
		w.woken = make(chan struct{}, 1)
	}
	unread, w.unread = w.unread, false
	return w.latest, w.woken, unread
}

// grantedAt returns the wakeup of a grant to w, for a request sent at sent and the
// driver's ttl.
func (w *waiter) grantedAt(sent boottime.Instant, counter int64, ttl time.Duration) wakeup {
	return wakeup{granted: true, sent: sent, counter: counter, lease: w.request.Lease(ttl), due: sent.Add(w.request.Every(ttl)), mode: refresh}
}

// handlePush handles a message on the process's channel.
func (ws *waiters) handlePush(message string) {
	p, err := parsePush(message)
	if err != nil {
		return // not ours
	}
	ws.mu.Lock()
	w := ws.all[p.owner]
	n := wakeup{mode: refresh}
	if w != nil && ws.canUse(w, p) {
		n.granted, n.sent, n.counter, n.lease, n.due = true, w.placeSent, p.counter, acceptFor, boottime.Sent().Add(confirmAfter)
	}
	ws.mu.Unlock()
	if w != nil {
		w.notify(n)
	}
}

// canUse reports whether a pushed grant can be used before it is confirmed. The answer
// to a request sent at w.placeSent still shows the place that the grant ends. So the grant
// is later, and lasts until acceptFor after w.placeSent at least. The first renewal confirms
// it. The caller holds ws.mu.
func (ws *waiters) canUse(w *waiter, p push) bool {
	lease, renews := w.request.Lease(ws.d.ttl), w.request.Renew >= 0
	return w.place == p.place && renews && lease >= 2*acceptFor && !settingsOf(ws.d.conn.client).confirms() &&
		boottime.Deadline(w.placeSent, acceptFor).Sub(boottime.Now()) >= acceptFor*3/4+w.request.MinLease
}

// sendAllNow makes all heartbeats due now, because pushes may have been missed.
func (ws *waiters) sendAllNow() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.all {
		if w.due != renewal.Never {
			w.due = boottime.Sent()
		}
	}
	hints.Signal(ws.wake)
}

// recordPlace records the place in the answer to a request sent at sent. The next
// heartbeat is due when the holder's lease ends, if that is known and sooner.
func (ws *waiters) recordPlace(w *waiter, sent boottime.Instant, r reply) {
	next := heartbeat
	if r.left >= 0 {
		next = min(next, r.left+2*time.Millisecond)
	}
	ws.mu.Lock()
	w.answered = max(w.answered, sent)
	switch {
	case r.place > w.place:
		w.place, w.placeSent = r.place, sent
	case r.place == w.place:
		w.placeSent = max(w.placeSent, sent)
	}
	w.due = boottime.Sent().Add(next)
	if w.due < ws.armed {
		hints.Signal(ws.wake)
	}
	ws.mu.Unlock()
	w.report(driver.Place{Ahead: r.ahead, Holder: r.holder})
}

// report calls Events.Waiting if the place has changed.
func (w *waiter) report(p driver.Place) {
	w.reporting.Lock()
	defer w.reporting.Unlock()
	if w.left || w.reported != nil && *w.reported == p {
		return
	}
	w.reported = &p
	if w.request.Events.Waiting != nil {
		w.request.Events.Waiting(p)
	}
}
