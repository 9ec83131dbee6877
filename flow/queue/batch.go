package queue

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// maxBatch is how many messages a batch has at most.
const maxBatch = 500

// Batch is a handler that handles messages of different keys together: those that come while fn
// runs are the next batch. A batch has at most 500 messages, and at most Options.Concurrency,
// whose default is 64.
//
// If fn fails, it runs again for each message alone, and that result counts: no message fails
// another one. So an attempt may call fn twice, and what fn did for a batch must be undone, as by
// the end of a transaction, or be repeatable. A message that comes again is handled alone. fn
// runs for one batch at a time, and for any number of single messages.
//
// ctx ends when the claim of any message does.
func Batch(fn func(ctx context.Context, all []Received) error) Handler {
	return (&gatherer{fn: fn}).handle
}

// gatherer makes batches of messages whose handlers run at the same time. Each batch has a
// leader: the goroutine of one of its messages, in which fn runs.
type gatherer struct {
	fn func(ctx context.Context, all []Received) error

	mu      sync.Mutex
	led     bool // there is a leader
	waiting []*member
}

// member is one message that is handled.
type member struct {
	ctx  context.Context
	m    Received
	turn chan turn // capacity 1
}

// turn is what a member does next: it leads a batch, is handled alone, or returns err.
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

// enter makes a member the leader, or has it wait for one.
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

// lead handles a batch, and says what each of its members does.
func (g *gatherer) lead(me *member) turn {
	all := g.gather(me)
	defer g.pass()
	if len(all) == 1 {
		return turn{err: g.fn(me.ctx, []Received{me.m})}
	}
	t := g.together(all)
	for _, other := range all[1:] {
		other.turn <- t
	}
	return t
}

// gather is a member and those that wait.
func (g *gatherer) gather(me *member) []*member {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(maxBatch-1, len(g.waiting))
	all := append([]*member{me}, g.waiting[:n]...)
	g.waiting = slices.Delete(g.waiting, 0, n)
	return all
}

// pass makes the first member that waits the leader.
func (g *gatherer) pass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.led = len(g.waiting) > 0; g.led {
		g.waiting[0].turn <- turn{lead: true}
		g.waiting = slices.Delete(g.waiting, 0, 1)
	}
}

// together runs fn with several messages. If it fails, or panics, each is handled alone.
func (g *gatherer) together(all []*member) (t turn) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(all[0].ctx))
	defer cancel(nil)
	messages := make([]Received, len(all))
	for i, one := range all {
		messages[i] = one.m
		defer context.AfterFunc(one.ctx, func() { cancel(context.Cause(one.ctx)) })()
	}
	t.alone = true
	defer func() { _ = recover() }() // the message that panics alone, too, fails
	err := g.fn(ctx, messages)
	var o *outcome
	if err == nil || errors.As(err, &o) && o.whole {
		return turn{err: err}
	}
	return t
}
