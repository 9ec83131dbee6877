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

const (
	// heartbeat is how often a waiter reports that it is alive.
	heartbeat = 500 * time.Millisecond
	// aliveFor is how long a waiter keeps its place after its last heartbeat.
	aliveFor = 3 * heartbeat
	// acceptFor is how long a pushed grant waits for its confirmation.
	acceptFor = time.Second
	// confirmAfter is when a pushed grant in use is confirmed: while most of acceptFor is
	// left, and after the end of most short holds, which need no confirmation.
	confirmAfter = 20 * time.Millisecond
)

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

func (ws *waiters) run(ctx context.Context) { renewal.Loop(ctx, ws.wake, ws.next, ws.sendHeartbeats) }

func (ws *waiters) next() boottime.Instant {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.armed = renewal.Never
	for _, w := range ws.all {
		ws.armed = min(ws.armed, w.due)
	}
	return ws.armed
}

// dueWaiters returns the waiters whose heartbeat is due now, or soon.
func (ws *waiters) dueWaiters(now boottime.Instant) []*waiter {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	var due []*waiter
	for _, w := range ws.all {
		if w.due <= now.Add(heartbeat/4) {
			due = append(due, w)
		}
	}
	return due
}

// sendHeartbeats sends the heartbeats of all waiters that are due.
func (ws *waiters) sendHeartbeats(ctx context.Context) {
	due := ws.dueWaiters(boottime.Now())
	if len(due) == 0 {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, 2*heartbeat)
	defer cancel()
	sent := boottime.Sent()
	parts, results, err := evalParts(bounded, ws.d.conn, request{op: "keep place", passing: true}, contendScript,
		chunks(ws.d.layout, due, func(w *waiter) string { return w.keys[0] }), ws.d.refreshes)
	if ctx.Err() != nil {
		return
	}
	for i, chunk := range parts {
		answers, err := readAnswers(results, i, len(chunk), err)
		for j, w := range chunk {
			if err != nil {
				ws.heartbeatFailed(w, err)
				continue
			}
			ws.heartbeatAnswered(w, sent, answers[j])
		}
	}
}

// readAnswers parses the answers for chunk i, one for each of its n waiters.
func readAnswers(results []rueidis.RedisResult, i, n int, err error) ([]reply, error) {
	if err != nil {
		return nil, err
	}
	m, err := results[i].ToMessage()
	if err != nil {
		return nil, failure(request{op: "keep place"}, err)
	}
	return parseReplies(m, n)
}

// heartbeatFailed ends the wait if its place must have expired.
func (ws *waiters) heartbeatFailed(w *waiter, err error) {
	now := boottime.Now()
	ws.mu.Lock()
	w.due = now.Add(heartbeat)
	silent := now.Sub(w.answered)
	ws.mu.Unlock()
	if silent > aliveFor {
		w.notify(wakeup{err: uncertain(w.operation(), err)})
	}
}

// heartbeatAnswered passes w the answer to the heartbeat that was sent at sent.
func (ws *waiters) heartbeatAnswered(w *waiter, sent boottime.Instant, r reply) {
	switch r.status {
	case statusWaiting:
		ws.recordPlace(w, sent, r)
		return
	case statusGranted:
		if settingsOf(ws.d.conn.client).confirms() {
			w.notify(wakeup{mode: refresh}) // with a request that is confirmed
			break
		}
		w.notify(w.grantedAt(sent, r.counter, ws.d.ttl))
	case statusGone:
		w.notify(wakeup{mode: enqueue})
	default:
		w.notify(wakeup{err: r.failure(w.operation())})
	}
	ws.mu.Lock()
	w.answered, w.due = max(w.answered, sent), boottime.Sent().Add(heartbeat)
	ws.mu.Unlock()
}
