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

// mostHeard is how many different messages are kept for a listener who is busy.
// With more, everything may have changed.
const mostHeard = 1000

// heard is what was published since a listener last took it.
type heard struct {
	missed   bool // it may be more than messages: some may not have come
	messages map[string]struct{}
}

// ear collects for one listener. It never blocks the connection's reader.
type ear struct {
	wake chan struct{}

	mu  sync.Mutex
	got heard
}

func newEar() *ear { return &ear{wake: make(chan struct{}, 1)} }

func (e *ear) hear(message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.got.messages) >= mostHeard {
		e.got = heard{missed: true}
	}
	if e.got.messages == nil {
		e.got.messages = map[string]struct{}{}
	}
	e.got.messages[message] = struct{}{}
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

// follow calls look, from the caller's goroutine, with what was published on
// channel: first once it is subscribed, then whenever there is something, when
// the subscription was interrupted, and after the time that look itself returned.
// It ends with ctx, with the driver, with the first error of look, or if it
// cannot subscribe; what was subscribed once is subscribed again.
func (c *conn) follow(ctx context.Context, r request, channel string, look func(context.Context, heard) (time.Duration, error)) error {
	if ctx.Err() != nil {
		return unsent(r, context.Cause(ctx))
	}
	leave, ok := c.join(channel)
	if !ok {
		return closed(r)
	}
	listening, stop := context.WithCancel(ctx)
	defer stop()
	e, refused := newEar(), make(chan error, 1)
	go func() {
		defer leave()
		if err := c.subscribe(listening, r, channel, e); err != nil {
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
func (c *conn) subscribe(ctx context.Context, r request, channel string, e *ear) error {
	var confirmed atomic.Bool
	var failed atomic.Int32 // attempts since the last success
	hook := func(s rueidis.PubSubSubscription) {
		if s.Kind == "subscribe" {
			confirmed.Store(true)
			failed.Store(0)
			e.miss()
		}
	}
	for {
		err := c.client.Receive(rueidis.WithOnSubscriptionHook(undated{ctx}, hook),
			c.client.B().Subscribe().Channel(channel).Build(),
			func(m rueidis.PubSubMessage) { e.hear(m.Message) })
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

// join counts a listener on channel, unless the driver was closed. The last one
// to leave ends the subscription, as a courtesy: if that fails, the connection is
// gone or nobody publishes there. One who comes at that moment subscribes again.
func (c *conn) join(channel string) (leave func(), open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	c.running.Add(1)
	c.listeners[channel]++
	return func() {
		defer c.running.Done()
		c.mu.Lock()
		c.listeners[channel]--
		last := c.listeners[channel] == 0
		if last {
			delete(c.listeners, channel)
		}
		c.mu.Unlock()
		if last {
			c.unsubscribe(channel)
		}
	}, true
}

func (c *conn) unsubscribe(channel string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c.client.Do(undated{ctx}, c.client.B().Unsubscribe().Channel(channel).Build())
}
