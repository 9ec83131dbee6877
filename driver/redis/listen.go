package redis

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/renewal"
)

// A topic is a channel, or the channels that match a pattern.
type topic struct {
	name    string
	pattern bool
}

// subscription returns the command that subscribes, and the kind of its confirmation.
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

// follow calls look in the caller's goroutine, with the channels of a topic that received messages,
// and whether others may have. It calls look first once it has subscribed, then after each message,
// after an interruption, and after the time that look returned. It ends with ctx, with the driver,
// with the first error of look, or if the first subscription fails; it renews later ones.
func (c *conn) follow(ctx context.Context, r request, to topic, look func(ctx context.Context, channels []string, missed bool) (time.Duration, error)) error {
	if ctx.Err() != nil {
		return unsent(r, context.Cause(ctx))
	}
	r.harmless = true
	leave, ok := c.join(to)
	if !ok {
		return closed(r)
	}
	listening, stop := context.WithCancel(ctx)
	defer stop()
	box, refused := driver.NewMailbox("", driver.MostNames), make(chan error, 1)
	go func() {
		defer leave()
		if err := c.subscribe(listening, r, to, box); err != nil {
			refused <- err
		}
	}()
	again := time.NewTimer(time.Duration(renewal.Never))
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-c.ended:
		case err := <-refused:
			return err
		case <-box.Woken():
		case <-again.C:
			box.Miss()
		}
		switch {
		case ctx.Err() != nil:
			return unsent(r, context.Cause(ctx))
		case c.isClosed():
			return closed(r)
		}
		channels, missed := box.Take()
		next, err := look(ctx, channels, missed)
		if err != nil {
			return err
		}
		again.Reset(next)
	}
}

// subscribe listens until ctx ends. It returns an error if it cannot.
func (c *conn) subscribe(ctx context.Context, r request, to topic, box *driver.Mailbox) error {
	var confirmed atomic.Bool
	var failed atomic.Int32 // attempts since the last success
	_, kind := to.subscription(c.client.B())
	hook := func(s rueidis.PubSubSubscription) {
		if s.Kind == kind {
			confirmed.Store(true)
			failed.Store(0)
			box.Miss()
		}
	}
	for {
		command, _ := to.subscription(c.client.B())
		err := c.client.Receive(rueidis.WithOnSubscriptionHook(undated{ctx}, hook), command,
			func(m rueidis.PubSubMessage) { box.Add(m.Channel) })
		if ctx.Err() != nil {
			return nil
		}
		over := errors.Is(err, rueidis.ErrClosing)
		if err = failure(r, err); err != nil && (over || !confirmed.Load() || interlock.Kind(err) == interlock.Definite) {
			return err
		}
		resubscribe.Wait(ctx, int(failed.Add(1)))
	}
}

// join counts a listener to a topic, unless the driver is closed. The last one to
// leave ends the subscription. That may fail: then the connection is gone, or there
// is no publisher. A listener that joins meanwhile subscribes again.
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
