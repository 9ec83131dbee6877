package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
)

var ok = testbed.OK

// record has the ids of handled messages.
type record struct {
	mu  sync.Mutex
	ids []string
}

func (r *record) add(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids = append(r.ids, id)
}

// of returns the ids of a key, in the order in which they were handled.
func (r *record) of(key string) (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range r.ids {
		if strings.HasPrefix(id, key) {
			ids = append(ids, id)
		}
	}
	return ids
}

// fill adds n messages to each key, whose ids are KEY followed by a digit.
func fill(t *testing.T, q *memory.Queue, n int, keys ...string) {
	for i := range n {
		for _, key := range keys {
			ok(t, q.Add("q", queue.Message{ID: fmt.Sprintf("%s%d", key, i), Key: key}))
		}
	}
}

// consume starts a consumer of the queue q, with short pauses unless o has others.
func consume(t *testing.T, q driver.Queue, handler queue.Handler, o queue.Options) *queue.Consumer {
	t.Helper()
	if o.MinPause == 0 {
		o.MinPause, o.MaxPause = time.Millisecond, time.Millisecond
	}
	o.Hooks = &observe.Queue{Log: observe.Silent}
	c, err := queue.New(t.Context(), q, "q", handler, &o)
	ok(t, err)
	return c
}

// bubble runs a test in virtual time, with a consumer of q that is closed at its end.
func bubble(t *testing.T, o queue.Options, handler func(ctx context.Context, m queue.Received) error, test func(t *testing.T, q *memory.Queue, c *queue.Consumer)) {
	virtual.Test(t, func(t *testing.T) {
		q := memory.NewQueue()
		o.MinPause = queue.DefaultMinPause
		c := consume(t, q, handler, o)
		test(t, q, c)
		ok(t, c.Close(t.Context()))
	})
}

func TestFailingKeyBlocksItselfOnly(t *testing.T) {
	var r record
	var failures atomic.Int64
	bubble(t, queue.Options{}, func(_ context.Context, m queue.Received) error {
		if m.ID == "a1" && m.Attempt < 4 {
			failures.Add(1)
			return errors.New("not yet")
		}
		r.add(m.ID)
		return nil
	}, func(t *testing.T, q *memory.Queue, _ *queue.Consumer) {
		fill(t, q, 3, "a", "b")
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		if a, b := r.of("a"), r.of("b"); len(a) != 1 || len(b) != 3 {
			t.Errorf("handled %v and %v while a1 fails", a, b)
		}
		time.Sleep(10 * time.Second)
		if a := r.of("a"); !slices.Equal(a, []string{"a0", "a1", "a2"}) || failures.Load() != 3 {
			t.Errorf("handled %v after %d failures", a, failures.Load())
		}
	})
}

func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		failing queue.Failing
		dead    int
		handled []string
	}{{queue.Skip, 1, []string{"a1"}}, {queue.Pause, 0, nil}, {queue.Block, 0, nil}} {
		var r record
		bubble(t, queue.Options{Failing: c.failing, Attempts: 3}, func(_ context.Context, m queue.Received) error {
			if m.ID == "a0" {
				panic("it always does")
			}
			r.add(m.ID)
			return nil
		}, func(t *testing.T, q *memory.Queue, _ *queue.Consumer) {
			fill(t, q, 2, "a")
			time.Sleep(10 * time.Minute)
			if dead := len(q.DeadLetters("q")); dead != c.dead || !slices.Equal(r.of("a"), c.handled) {
				t.Errorf("policy %d: %d dead letters, handled %v", c.failing, dead, r.of("a"))
			}
			if err := q.Resume("q", "a"); (err == nil) != (c.failing == queue.Pause) {
				t.Errorf("policy %d: resume: %v", c.failing, err)
			}
		})
	}
}

// TestHeldLock: a message whose lock is held waits in the queue, without a handler and without a
// failure.
func TestHeldLock(t *testing.T) {
	var r record
	var taken atomic.Bool
	taken.Store(true)
	bubble(t, queue.Options{Concurrency: 1, Failing: queue.Skip, Attempts: 2}, func(_ context.Context, m queue.Received) error {
		if m.Key == "a" && taken.Load() {
			return &interlock.HeldError{Name: "a"}
		}
		if m.Attempt != 1 {
			t.Errorf("%s has attempt %d", m.ID, m.Attempt)
		}
		r.add(m.ID)
		return nil
	}, func(t *testing.T, q *memory.Queue, _ *queue.Consumer) {
		fill(t, q, 3, "a", "b")
		time.Sleep(time.Minute)
		if a, b := r.of("a"), r.of("b"); len(a) != 0 || len(b) != 3 {
			t.Errorf("handled %v and %v", a, b)
		}
		taken.Store(false)
		time.Sleep(time.Minute)
		if a := r.of("a"); !slices.Equal(a, []string{"a0", "a1", "a2"}) || len(q.DeadLetters("q")) > 0 {
			t.Errorf("handled %v", a)
		}
	})
}

// TestBounds: InFlight bounds the received messages, and the leases of those in handlers are renewed.
func TestBounds(t *testing.T) {
	var running, most atomic.Int64
	var block chan struct{} // of the bubble
	bubble(t, queue.Options{InFlight: 5, Concurrency: 3, Lease: time.Second}, func(_ context.Context, m queue.Received) error {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		<-block
		if !m.Claim.Valid() {
			t.Errorf("the claim of %s has ended", m.ID)
		}
		return nil
	}, func(t *testing.T, q *memory.Queue, _ *queue.Consumer) {
		block = make(chan struct{})
		fill(t, q, 1, "a", "b", "c", "d", "e", "f", "g", "h")
		time.Sleep(time.Minute)
		other, err := q.Join(t.Context(), "q", driver.QueueOptions{})
		ok(t, err)
		rest, err := other.Receive(t.Context(), driver.QueueLimit{Messages: 100, Bytes: 100})
		ok(t, err)
		if len(rest) != 3 || most.Load() != 3 {
			t.Errorf("%d messages are left, %d handlers ran", len(rest), most.Load())
		}
		ok(t, other.Close(t.Context()))
		close(block)
		time.Sleep(time.Minute)
		if most.Load() > 3 {
			t.Errorf("%d handlers ran at the same time", most.Load())
		}
	})
}

// TestClose waits for handlers; messages that have not begun go to other consumers at once, uncounted.
func TestClose(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		q := memory.NewQueue()
		fill(t, q, 2, "a")
		fill(t, q, 1, "b")
		handler := func(ctx context.Context, m queue.Received) error {
			if m.Key == "a" { // waits until it is interrupted
				<-ctx.Done()
				return context.Cause(ctx)
			}
			time.Sleep(time.Second)
			return nil
		}
		c := consume(t, q, handler, queue.Options{})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close: %v", err)
		}
		other, err := q.Join(t.Context(), "q", driver.QueueOptions{})
		ok(t, err)
		defer func() { ok(t, other.Close(t.Context())) }()
		rest, err := other.Receive(t.Context(), driver.QueueLimit{Messages: 100, Bytes: 100})
		ok(t, err)
		if len(rest) != 2 || rest[0].ID != "a0" || rest[0].Attempt != 1 {
			t.Errorf("received %v", rest)
		}
	})
}

func TestBadOptions(t *testing.T) {
	handler := func(context.Context, queue.Received) error { return nil }
	for _, o := range []queue.Options{{Concurrency: -1}, {InFlight: -1}, {Bytes: -1}, {Attempts: -1}, {MinPause: -1}, {MinPause: 2, MaxPause: 1}, {Failing: 3}, {Lease: 1}} {
		if _, err := queue.New(t.Context(), memory.NewQueue(), "q", handler, &o); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := queue.New(t.Context(), memory.NewQueue(), "q", nil, nil); interlock.Kind(err) != interlock.Bug {
		t.Errorf("no handler: %v", err)
	}
}

// noLetters is a queue that cannot write dead letters.
type noLetters struct{ driver.Queue }

func (q noLetters) Join(ctx context.Context, name string, o driver.QueueOptions) (driver.QueueConsumer, error) {
	c, err := q.Queue.Join(ctx, name, o)
	return noLettersConsumer{c}, err
}

type noLettersConsumer struct{ driver.QueueConsumer }

func (c noLettersConsumer) Settle(ctx context.Context, all []driver.Settlement) []error {
	answers := make([]error, len(all))
	for i := range all {
		if all[i].Outcome == driver.Dead {
			answers[i] = &interlock.Error{Op: "settle", Kind: interlock.Definite, Err: errors.New("the dead letter is too large")}
		} else {
			answers[i] = c.QueueConsumer.Settle(ctx, all[i:i+1])[0]
		}
	}
	return answers
}

// TestRefusedDeadLetter: a dead letter that cannot be written stops no other message.
func TestRefusedDeadLetter(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var r record
		q := memory.NewQueue()
		c := consume(t, noLetters{q}, func(_ context.Context, m queue.Received) error {
			if m.Key == "a" {
				return queue.Dead(errors.New("it always fails"))
			}
			r.add(m.ID)
			return nil
		}, queue.Options{InFlight: 4})
		fill(t, q, 1, "a")
		time.Sleep(time.Second)
		fill(t, q, 9, "b")
		time.Sleep(time.Minute)
		if n := len(r.of("b")); n != 9 {
			t.Errorf("%d of 9 messages were handled", n)
		}
		ok(t, c.Close(t.Context()))
	})
}

// TestBlockingHook: a hook that blocks delays no other key, and Close only for a while.
func TestBlockingHook(t *testing.T) {
	unblock := make(chan struct{})
	for name, hooks := range map[string]*observe.Queue{
		"failed":  {Log: observe.Silent, Failed: func(observe.QueueFailed) { <-unblock }},
		"trouble": {Log: observe.Silent, Trouble: func(observe.QueueTrouble) { <-unblock }},
	} {
		virtual.Test(t, func(t *testing.T) {
			var r record
			q := memory.NewQueue()
			unblock = make(chan struct{})
			c, err := queue.New(t.Context(), noLetters{q}, "q", func(_ context.Context, m queue.Received) error {
				if m.Key == "a" {
					return queue.Dead(errors.New("it always fails"))
				}
				r.add(m.ID)
				return nil
			}, &queue.Options{InFlight: 4, Concurrency: 1, Hooks: hooks})
			ok(t, err)
			fill(t, q, 1, "a")
			time.Sleep(time.Second)
			fill(t, q, 9, "b")
			time.Sleep(time.Minute)
			if n := len(r.of("b")); n != 9 {
				t.Errorf("%s: %d of 9 messages were handled", name, n)
			} else if err := c.Close(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: close: %v", name, err)
			}
			close(unblock)
			ok(t, c.Close(t.Context()))
		})
	}
}

// TestParkWithoutKey: a message that no operator could resume is a dead letter.
func TestParkWithoutKey(t *testing.T) {
	bubble(t, queue.Options{Failing: queue.Pause, Attempts: 1}, func(context.Context, queue.Received) error {
		return errors.New("it always fails")
	}, func(t *testing.T, q *memory.Queue, _ *queue.Consumer) {
		ok(t, q.Add("q", queue.Message{ID: "1"}))
		time.Sleep(time.Second)
		if n := len(q.DeadLetters("q")); n != 1 {
			t.Errorf("%d dead letters", n)
		}
	})
}

// TestCloseWithEndedContext: a consumer without work is closed without an error, also again.
func TestCloseWithEndedContext(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c := consume(t, memory.NewQueue(), func(context.Context, queue.Received) error { return nil }, queue.Options{})
	for range 20 {
		ok(t, c.Close(ended))
	}
}
