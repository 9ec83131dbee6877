package queue

import (
	"context"
	"errors"
	"slices"
	"sync"
)

const maxBatch = 500 // messages

// Batch returns a handler that handles messages of different keys together: messages that arrive
// while fn runs form the next batch. A batch has at most 500 messages, and at most
// Options.Concurrency (default 64).
//
// If fn fails, it runs again for each message alone, and that result counts: no message fails
// another one. So an attempt may call fn twice, and the effects of fn for a batch must be rolled
// back or repeatable. A message that is delivered again is handled alone. fn runs for one batch at
// a time, and concurrently for any number of single messages.
//
// ctx ends when the claim of any message ends.
func Batch(fn func(ctx context.Context, all []Received) error) Handler {
	return (&gatherer{fn: fn}).handle
}

// gatherer forms batches of messages whose handlers run at the same time. fn runs in the goroutine
// of one message of the batch, the leader.
type gatherer struct {
	fn func(ctx context.Context, all []Received) error

	mu      sync.Mutex
	led     bool // a batch has a leader
	waiting []*member
}

// member is one message and its handler.
type member struct {
	ctx  context.Context
	m    Received
	turn chan turn // capacity 1
}

// turn tells a member to lead a batch, to handle its message alone, or to return err.
type turn struct {
	lead, alone bool
	err         error
}

func (g *gatherer) handle(ctx context.Context, m Received) error {
	if m.Attempt > 1 {
		return g.fn(ctx, []Received{m})
	}
	me := &member{ctx, m, make(chan turn, 1)}
	g.enter(me)
	t := <-me.turn
	if t.lead {
		t = g.lead(me)
	}
	if t.alone {
		return g.fn(ctx, []Received{m})
	}
	return t.err
}

// enter makes a member the leader, or adds it to those that wait.
func (g *gatherer) enter(me *member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.led {
		g.waiting = append(g.waiting, me)
		return
	}
	g.led = true
	me.turn <- turn{lead: true}
}

// lead handles a batch and returns the turn of its members. They have it even if fn ends the
// goroutine.
func (g *gatherer) lead(me *member) (t turn) {
	all := g.gather(me)
	defer g.pass()
	if len(all) == 1 {
		return turn{err: g.fn(me.ctx, []Received{me.m})}
	}
	t.alone = true
	defer func() {
		for _, other := range all[1:] {
			other.turn <- t
		}
	}()
	t = g.together(all)
	return t
}

// gather returns a member and those that wait.
func (g *gatherer) gather(me *member) []*member {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(maxBatch-1, len(g.waiting))
	all := append([]*member{me}, g.waiting[:n]...)
	g.waiting = slices.Delete(g.waiting, 0, n)
	return all
}

// pass makes the first waiting member the leader.
func (g *gatherer) pass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.led = len(g.waiting) > 0; g.led {
		g.waiting[0].turn <- turn{lead: true}
		g.waiting = slices.Delete(g.waiting, 0, 1)
	}
}

// together runs fn for several messages. If it fails or panics, each is handled alone.
func (g *gatherer) together(all []*member) (t turn) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(all[0].ctx))
	defer cancel(nil)
	messages := make([]Received, len(all))
	for i, one := range all {
		messages[i] = one.m
		defer context.AfterFunc(one.ctx, func() { cancel(context.Cause(one.ctx)) })()
	}
	t.alone = true
	defer func() { _ = recover() }() // a message that panics again alone fails
	err := g.fn(ctx, messages)
	var o *outcome
	if err == nil || errors.As(err, &o) && o.whole {
		return turn{err: err}
	}
	return t
}
