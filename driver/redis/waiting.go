package redis

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver/boottime"
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
	parts := chunks(ws.d.layout, due, func(w *waiter) string { return w.keys[0] })
	batches := make([]batch, len(parts))
	for i, chunk := range parts {
		batches[i] = ws.d.contention(refresh, chunk...)
	}
	bounded, cancel := context.WithTimeout(ctx, 2*heartbeat)
	defer cancel()
	sent := boottime.Sent()
	results, err := ws.d.conn.evalAll(bounded, request{op: "keep place", passing: true}, contendScript, batches)
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
