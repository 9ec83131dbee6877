package redis

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
)

// mostHeard is how many different channels are kept for a listener who is busy.
// With more, everything may have changed.
const mostHeard = 1000

// heard is what was published since a listener last took it.
type heard struct {
	missed   bool // it may be more than channels: some may not have come
	channels map[string]struct{}
}

// ear collects for one listener. It never blocks the connection's reader.
type ear struct {
	wake chan struct{}

	mu  sync.Mutex
	got heard
}

func newEar() *ear { return &ear{wake: make(chan struct{}, 1)} }

func (e *ear) hear(channel string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.got.channels) >= mostHeard {
		e.got = heard{missed: true}
	}
	if e.got.channels == nil {
		e.got.channels = map[string]struct{}{}
	}
	e.got.channels[channel] = struct{}{}
	signal(e.wake)
}

func (e *ear) miss() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got.missed = true
	signal(e.wake)
}

func (e *ear) take() heard {
	e.mu.Lock()
	defer e.mu.Unlock()
	got := e.got
	e.got = heard{}
	return got
}

// A topic is what is listened to: a channel, or those that match a pattern.
type topic struct {
	name    string
	pattern bool
}

// subscription makes the command that begins to listen, and what confirms it.
func (t topic) subscription(b rueidis.Builder) (rueidis.Completed, string) {
	if t.pattern {
		return b.Psubscribe().Pattern(t.name).Build(), "psubscribe"
	}
	return b.Subscribe().Channel(t.name).Build(), "subscribe"
}

func (t topic) unsubscription(b rueidis.Builder) rueidis.Completed {
	if t.pattern {
		return b.Punsubscribe().Pattern(t.name).Build()
	}
	return b.Unsubscribe().Channel(t.name).Build()
}

// follow calls look, from the caller's goroutine, with the channels of a topic on
// which something was published: first once it is subscribed, then whenever there is something, when
// the subscription was interrupted, and after the time that look itself returned.
// It ends with ctx, with the driver, with the first error of look, or if it
// cannot subscribe; what was subscribed once is subscribed again.
func (c *conn) follow(ctx context.Context, r request, to topic, look func(context.Context, heard) (time.Duration, error)) error {
	if ctx.Err() != nil {
		return unsent(r, context.Cause(ctx))
	}
	leave, ok := c.join(to)
	if !ok {
		return closed(r)
	}
	listening, stop := context.WithCancel(ctx)
	defer stop()
	e, refused := newEar(), make(chan error, 1)
	go func() {
		defer leave()
		if err := c.subscribe(listening, r, to, e); err != nil {
			refused <- err
		}
	}()
	again := time.NewTimer(time.Duration(never))
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-c.ended:
		case err := <-refused:
			return err
		case <-e.wake:
		case <-again.C:
			e.miss()
		}
		switch {
		case ctx.Err() != nil:
			return unsent(r, context.Cause(ctx))
		case c.isClosed():
			return closed(r)
		}
		next, err := look(ctx, e.take())
		if err != nil {
			return err
		}
		again.Reset(next)
	}
}

// subscribe listens until ctx ends. It returns why it cannot.
func (c *conn) subscribe(ctx context.Context, r request, to topic, e *ear) error {
	var confirmed atomic.Bool
	var failed atomic.Int32 // attempts since the last success
	_, kind := to.subscription(c.client.B())
	hook := func(s rueidis.PubSubSubscription) {
		if s.Kind == kind {
			confirmed.Store(true)
			failed.Store(0)
			e.miss()
		}
	}
	for {
		command, _ := to.subscription(c.client.B())
		err := c.client.Receive(rueidis.WithOnSubscriptionHook(undated{ctx}, hook), command,
			func(m rueidis.PubSubMessage) { e.hear(m.Channel) })
		if ctx.Err() != nil {
			return nil
		}
		over := errors.Is(err, rueidis.ErrClosing)
		if err = failure(r, err); err != nil && (over || !confirmed.Load() || interlock.Kind(err) == interlock.Definite) {
			return harmless(r, err)
		}
		pause(ctx, resubscribe.Delay(int(failed.Add(1)), rand.Float64()))
	}
}

// join counts a listener to a topic, unless the driver was closed. The last one
// to leave ends the subscription, as a courtesy: if that fails, the connection is
// gone or nobody publishes there. One who comes at that moment subscribes again.
func (c *conn) join(to topic) (leave func(), open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	c.running.Add(1)
	c.listeners[to]++
	return func() {
		defer c.running.Done()
		c.mu.Lock()
		c.listeners[to]--
		last := c.listeners[to] == 0
		if last {
			delete(c.listeners, to)
		}
		c.mu.Unlock()
		if last {
			unsubscribe(context.Background(), c.client, to)
		}
	}, true
}
