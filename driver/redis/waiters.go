package redis

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/boottime"
)

const (
	// heartbeat is how often a waiter says that it lives.
	heartbeat = 500 * time.Millisecond
	// aliveFor is how long a waiter keeps its place without being heard of.
	aliveFor = 3 * heartbeat
	// acceptFor is how long a pushed grant waits for its confirmation.
	acceptFor = time.Second
)

// Modes of contend.lua.
const (
	enqueue = "enqueue"
	noWait  = "nowait"
	refresh = "refresh"
)

// waiters are the requests of one process that are under way, and the loop that
// keeps their places.
type waiters struct {
	d    *Driver
	wake chan struct{}

	mu     sync.Mutex
	all    map[string]*waiter // by owner
	closed bool
}

// waiter is one Acquire under way.
type waiter struct {
	request driver.Request
	keys    keys
	news    chan news // what does not fit is found by a heartbeat

	// Guarded by waiters.mu.
	due   boottime.Instant // of the next heartbeat; never before there is a place
	heard boottime.Instant // when the last answered request left

	// telling is held while Events.Waiting is called, so that it is not called
	// after Acquire has returned.
	telling sync.Mutex
	told    *driver.Place
	left    bool
}

// news wakes a waiting Acquire: a grant, an error, or a reason to ask again.
type news struct {
	granted bool
	sent    boottime.Instant
	counter int64

	mode string
	err  error
}

func newWaiters(d *Driver) *waiters {
	return &waiters{d: d, wake: make(chan struct{}, 1), all: map[string]*waiter{}}
}

// enter registers before the first request leaves, because a push may come
// before its answer.
func (ws *waiters) enter(r driver.Request, k keys) *waiter {
	w := &waiter{request: r, keys: k, news: make(chan news, 1), due: never}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.all[r.Owner] = w
	if ws.closed {
		w.tell(news{err: w.closed()})
	}
	return w
}

func (ws *waiters) leave(w *waiter) {
	ws.mu.Lock()
	if ws.all[w.request.Owner] == w {
		delete(ws.all, w.request.Owner)
	}
	ws.mu.Unlock()
	w.telling.Lock()
	w.left = true
	w.telling.Unlock()
}

// asks is what w wants, for errors.
func (w *waiter) asks() request {
	return request{op: "acquire", name: w.request.Name, owner: w.request.Owner}
}

func (w *waiter) closed() error { return uncertain(w.asks(), interlock.ErrClosed) }

// closeAll ends every Acquire under way.
func (ws *waiters) closeAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.closed = true
	for _, w := range ws.all {
		w.tell(news{err: w.closed()})
	}
}

// tell replaces nothing that is unread, except by an error: whatever the waiter
// reads, it asks again and finds the rest.
func (w *waiter) tell(n news) {
	for {
		select {
		case w.news <- n:
			return
		default:
		}
		if n.err == nil {
			return
		}
		select {
		case <-w.news:
		default:
		}
	}
}

// await waits for news of w.
func (ws *waiters) await(ctx context.Context, w *waiter) (news, error) {
	select {
	case n := <-w.news:
		return n, n.err
	case <-ctx.Done():
		return news{}, uncertain(w.asks(), context.Cause(ctx))
	}
}

// pushed is called for each message on the process's channel.
func (ws *waiters) pushed(owner string) {
	ws.mu.Lock()
	w := ws.all[owner]
	ws.mu.Unlock()
	if w != nil {
		w.tell(news{mode: refresh})
	}
}

// hurry makes all heartbeats due now, because pushes may have been missed.
func (ws *waiters) hurry() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.all {
		if w.due != never {
			w.due = boottime.Now()
		}
	}
	signal(ws.wake)
}

// placed notes the place that the server answered to the request sent at sent.
// The first in the queue asks again when the holder's time is over.
func (ws *waiters) placed(w *waiter, sent boottime.Instant, r reply) {
	next := heartbeat
	if r.ahead == 0 && r.left >= 0 {
		next = min(next, r.left+2*time.Millisecond)
	}
	ws.mu.Lock()
	w.heard = max(w.heard, sent)
	w.due = boottime.Now().Add(next)
	ws.mu.Unlock()
	signal(ws.wake)
	w.report(driver.Place{Ahead: r.ahead, Holder: r.holder})
}

// report tells a new place.
func (w *waiter) report(p driver.Place) {
	w.telling.Lock()
	defer w.telling.Unlock()
	if w.left || w.told != nil && *w.told == p {
		return
	}
	w.told = &p
	if w.request.Events.Waiting != nil {
		w.request.Events.Waiting(p)
	}
}

func (ws *waiters) run(ctx context.Context) { loop(ctx, ws.wake, ws.next, ws.beat) }

func (ws *waiters) next() boottime.Instant {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	next := never
	for _, w := range ws.all {
		next = min(next, w.due)
	}
	return next
}

// take gives the waiters whose heartbeat is due now, or soon.
func (ws *waiters) take(now boottime.Instant) []*waiter {
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

// beat says for all waiters that are due that they live.
func (ws *waiters) beat(ctx context.Context) {
	due := ws.take(boottime.Now())
	if len(due) == 0 {
		return
	}
	chunks := slices.Collect(slices.Chunk(due, batchSize))
	batches := make([]batch, len(chunks))
	for i, chunk := range chunks {
		batches[i] = ws.d.contention(refresh, chunk...)
	}
	bounded, cancel := context.WithTimeout(ctx, 2*heartbeat)
	defer cancel()
	sent := boottime.Now()
	results, err := ws.d.conn.evalAll(bounded, request{op: "keep place"}, contendScript, batches)
	if ctx.Err() != nil {
		return
	}
	for i, chunk := range chunks {
		answers, err := answers(results, i, len(chunk), err)
		for j, w := range chunk {
			if err != nil {
				ws.unheard(w, err)
				continue
			}
			ws.heardOf(w, sent, answers[j])
		}
	}
}

// answers reads the answers for chunk i, one for each of its n waiters.
func answers(results []rueidis.RedisResult, i, n int, err error) ([]reply, error) {
	if err != nil {
		return nil, err
	}
	m, err := results[i].ToMessage()
	if err != nil {
		return nil, failure(request{op: "keep place"}, err)
	}
	return parseReplies(m, n)
}

// unheard gives up when the place cannot be there any more.
func (ws *waiters) unheard(w *waiter, err error) {
	now := boottime.Now()
	ws.mu.Lock()
	w.due = now.Add(heartbeat)
	silent := now.Sub(w.heard)
	ws.mu.Unlock()
	if silent > aliveFor {
		w.tell(news{err: uncertain(w.asks(), err)})
	}
}

// heardOf passes on what the heartbeat sent at sent found.
func (ws *waiters) heardOf(w *waiter, sent boottime.Instant, r reply) {
	switch r.status {
	case statusWaiting:
		ws.placed(w, sent, r)
		return
	case statusGranted:
		w.tell(news{granted: true, sent: sent, counter: r.counter})
	case statusGone:
		w.tell(news{mode: enqueue})
	default:
		w.tell(news{err: r.failure(w.asks())})
	}
	ws.mu.Lock()
	w.heard, w.due = max(w.heard, sent), boottime.Now().Add(heartbeat)
	ws.mu.Unlock()
}

// contention makes the arguments of one contending request.
func (d *Driver) contention(mode string, chunk ...*waiter) batch {
	b := batch{args: []string{mode, milliseconds(d.ttl), milliseconds(aliveFor), d.pushes.channel}}
	for _, w := range chunk {
		b.keys = append(b.keys, w.keys.all()...)
		b.args = append(b.args, w.request.Owner)
	}
	return b
}

// contend asks for one name.
func (d *Driver) contend(ctx context.Context, w *waiter, mode string) (reply, error) {
	m, err := d.conn.eval(ctx, w.asks(), contendScript, d.contention(mode, w))
	if err != nil {
		return reply{}, err
	}
	answers, err := parseReplies(m, 1)
	switch {
	case err != nil:
		return reply{}, uncertain(w.asks(), err)
	case answers[0].status == statusFailed:
		return reply{}, answers[0].failure(w.asks())
	}
	return answers[0], nil
}
