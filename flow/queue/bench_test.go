package queue_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/queue"
)

// endless is a queue that delivers the same 500 messages again and again, of one assignment that
// lasts. It is as fast as a queue can be.
type endless struct {
	messages []*driver.Received
	answers  []error
	settled  atomic.Int64
}

type forever struct{ revoked chan struct{} }

func (*forever) Name() string               { return "q" }
func (*forever) Owner() string              { return "o" }
func (*forever) Token() interlock.Token     { return 1 << 12 }
func (*forever) Context() context.Context   { return context.Background() }
func (*forever) Remaining() time.Duration   { return time.Hour }
func (*forever) Valid() bool                { return true }
func (f *forever) Revoked() <-chan struct{} { return f.revoked }

func newEndless(keys int) *endless {
	e := &endless{answers: make([]error, 1<<14)}
	claim := &forever{make(chan struct{})}
	for i := range max(500, keys) {
		m := queue.Message{ID: strconv.Itoa(i), Key: "key-" + strconv.Itoa(i%keys), Payload: make([]byte, 100)}
		e.messages = append(e.messages, &driver.Received{QueueMessage: m, Claim: claim, Place: int64(i), Attempt: 1})
	}
	return e
}

func (e *endless) Join(context.Context, string, driver.QueueOptions) (driver.QueueConsumer, error) {
	return &endlessConsumer{endless: e}, nil
}

type endlessConsumer struct {
	*endless
	next int
}

func (e *endlessConsumer) Receive(ctx context.Context, limit driver.QueueLimit) ([]*driver.Received, error) {
	if e.next >= len(e.messages) {
		e.next = 0
	}
	some := e.messages[e.next:min(e.next+500, e.next+limit.Messages, len(e.messages))]
	e.next += len(some)
	return some, ctx.Err()
}

func (e *endlessConsumer) Settle(_ context.Context, all []driver.Settlement) []error {
	e.settled.Add(int64(len(all)))
	return e.answers[:len(all)]
}

func (e *endlessConsumer) Close(context.Context) error { return nil }

// BenchmarkConsumer is what a consumer costs for each message, with a queue and handlers that do
// nothing.
func BenchmarkConsumer(b *testing.B) {
	for _, keys := range []int{1, 100, 10_000} {
		b.Run("keys="+strconv.Itoa(keys), func(b *testing.B) {
			b.ReportAllocs()
			q := newEndless(keys)
			var handled atomic.Int64
			done := make(chan struct{})
			handler := func(context.Context, queue.Received) error {
				if handled.Add(1) == int64(b.N) {
					close(done)
				}
				return nil
			}
			b.ResetTimer()
			c, err := queue.New(b.Context(), q, "q", handler, &queue.Options{InFlight: 1 << 13})
			if err != nil {
				b.Fatal(err)
			}
			<-done
			b.StopTimer()
			if err := c.Close(b.Context()); err != nil {
				b.Error(err)
			}
		})
	}
}
