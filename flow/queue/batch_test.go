package queue

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// watched is a queue that reports when a message is about to begin: when the context of its claim
// is asked for.
type watched struct {
	*memory.Queue
	begins func()
}

type watchedConsumer struct {
	driver.QueueConsumer
	of *watched
}

type watchedClaim struct {
	driver.Assignment
	of *watched
}

func (w *watched) Join(ctx context.Context, name string, o driver.QueueOptions) (driver.QueueConsumer, error) {
	c, err := w.Queue.Join(ctx, name, o)
	return watchedConsumer{c, w}, err
}

func (w watchedConsumer) Receive(ctx context.Context, limit driver.QueueLimit) ([]driver.Received, error) {
	some, err := w.QueueConsumer.Receive(ctx, limit)
	for i := range some {
		some[i].Claim = watchedClaim{some[i].Claim, w.of}
	}
	return some, err
}

func (w watchedConsumer) Settle(ctx context.Context, all []driver.Settlement) []error {
	all = slices.Clone(all)
	for i := range all {
		all[i].Claim = all[i].Claim.(watchedClaim).Assignment
	}
	return w.QueueConsumer.Settle(ctx, all)
}

func (w watchedClaim) Context() context.Context {
	w.of.begins()
	return w.Assignment.Context()
}

// TestBatchIsInFlight: all messages that were received together count before the first begins. If
// that one failed and was settled before, nothing would hold the next one of its key.
func TestBatchIsInFlight(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		consumer := make(chan *Consumer, 1)
		var counts []int
		q := &watched{Queue: memory.NewQueue(), begins: func() {
			c := <-consumer
			c.mu.Lock()
			counts = append(counts, c.machine.messages)
			c.mu.Unlock()
			consumer <- c
		}}
		if err := q.Add("q", Message{Key: "a"}, Message{Key: "a"}, Message{Key: "b"}); err != nil {
			t.Fatal(err)
		}
		c, err := New(t.Context(), q, "q", func(context.Context, Received) error { return nil }, nil)
		if err != nil {
			t.Fatal(err)
		}
		consumer <- c
		synctest.Wait()
		if len(counts) == 0 || counts[0] != 3 {
			t.Errorf("in flight as the messages begin: %v; want 3 at first", counts)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
