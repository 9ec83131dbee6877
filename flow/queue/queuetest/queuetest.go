// Package queuetest starts consumers of flow/queue and flow/sequence in the tests of drivers. It checks
// no guarantee: the suite of queues is in driver/drivertest.
//
//	c := queuetest.Start(t, q, "orders", 6*time.Second, audit.Handle)
//	audit.Wait(t, 100)
//	c.Stop()
package queuetest

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/lanes"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// Consumer is a consumer of a test.
type Consumer struct{ *queue.Consumer }

// Start starts a consumer until the end of the test.
func Start(t *testing.T, q driver.Queue, name string, lease time.Duration, handler queue.Handler) Consumer {
	t.Helper()
	hooks := &observe.Queue{Failed: func(observe.QueueFailed) {}, Lost: func(observe.QueueLost) {},
		Trouble: func(e observe.QueueTrouble) { t.Logf("%s %s: %v", e.Op, e.Queue, e.Err) }}
	c, err := queue.New(t.Context(), q, name, handler, &queue.Options{Lease: lease, MinPause: time.Millisecond, Hooks: hooks})
	testbed.OK(t, err)
	t.Cleanup(Consumer{c}.Stop)
	return Consumer{c}
}

// Stop closes the consumer.
func (c Consumer) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

// Serve consumes a queue in a process of its own; its handlers write to the audit at guard. It returns
// only if it fails.
func Serve(q driver.Queue, name, guard string) error {
	_, err := queue.New(context.Background(), q, name, drivertest.WriteTo(guard, 500*time.Millisecond),
		&queue.Options{Lease: 2 * time.Second, Hooks: &observe.Queue{Log: observe.Silent}})
	if err != nil {
		return err
	}
	select {}
}

// Drained reports whether the result of Backlogs is that of n partitions without messages.
func Drained(all []lanes.Backlog, err error, n int) bool {
	lag := int64(0)
	for _, b := range all {
		lag += b.Lag
	}
	return err == nil && len(all) == n && lag == 0
}

// Sequence starts a sequencer of messages with the ids KEY/NUMBER, which writes to an audit. It returns
// the function that closes it.
func Sequence(t *testing.T, q driver.Queue, name string, lease time.Duration, store *sequence.Memory, audit *drivertest.QueueAudit) func(context.Context) {
	t.Helper()
	order, err := sequence.New("q", store, func(_ context.Context, _ struct{}, d sequence.Delivery) error {
		return audit.Write(d.Key, 1, d.Key, string(d.Payload))
	}, &sequence.Options{Halt: true})
	testbed.OK(t, err)
	source, err := order.Consume(t.Context(), q, name, func(m driver.Received) (sequence.Event, error) {
		_, number, _ := strings.Cut(m.ID, "/")
		seq, err := strconv.ParseInt(number, 10, 64)
		return sequence.Event{Key: m.Key, Position: sequence.Position{Seq: seq + 1}, Payload: []byte(m.ID)}, err
	}, &sequence.SourceOptions{Lease: lease})
	testbed.OK(t, err)
	return func(ctx context.Context) {
		_ = source.Close(ctx)
		_ = order.Close(context.WithoutCancel(ctx))
	}
}
