package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// QueueMember is a consumer that a test calls directly. If a call fails, the test fails.
type QueueMember struct {
	*testing.T
	driver.QueueConsumer
}

// JoinQueue adds a consumer to a queue until the end of the test.
func JoinQueue(t *testing.T, q driver.Queue, name string, o driver.QueueOptions) QueueMember {
	t.Helper()
	c, err := q.Join(t.Context(), name, o)
	testbed.OK(t, err)
	m := QueueMember{t, c}
	t.Cleanup(m.Leave)
	return m
}

// Leave closes the consumer.
func (m QueueMember) Leave() { m.close(patience) }

// Crash ends the consumer, which stays in its group.
func (m QueueMember) Crash() { m.close(0) }

func (m QueueMember) close(bound time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.Context()), bound)
	defer cancel()
	_ = m.Close(ctx)
}

// Take receives n messages of those that there are.
func (m QueueMember) Take(n int) []*driver.Received {
	m.Helper()
	return m.receive(n, n)
}

// All receives all messages, of which there are n.
func (m QueueMember) All(n int) []*driver.Received {
	m.Helper()
	return m.receive(n, 1000)
}

// receive receives n messages, each time up to the rest of limit, and repeats what a server
// that is starting refuses.
func (m QueueMember) receive(n, limit int) (all []*driver.Received) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), time.Minute) // an old member of the group may have to expire first
	defer cancel()
	for len(all) < n {
		some, err := m.Receive(ctx, driver.QueueLimit{Messages: limit - len(all), Bytes: 1 << 20})
		again := interlock.Kind(err) == interlock.Retryable && ctx.Err() == nil
		if all = append(all, some...); err != nil && !again || len(all) > n {
			m.Fatalf("received %v, %v; want %d", ReceivedIDs(all), err, n)
		}
	}
	return all
}

// Nothing requires that no message arrives for some time.
func (m QueueMember) Nothing(during time.Duration) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), during)
	defer cancel()
	if some, err := m.Receive(ctx, driver.QueueLimit{Messages: 10, Bytes: 1 << 20}); len(some) > 0 || !errors.Is(err, context.DeadlineExceeded) {
		m.Fatalf("received %v, %v; want nothing", ReceivedIDs(some), err)
	}
}

// Fails receives until Receive returns a wanted error.
func (m QueueMember) Fails(wanted func(error) bool) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), time.Minute) // an old member of the group may have to expire first
	defer cancel()
	for {
		if _, err := m.Receive(ctx, driver.QueueLimit{Messages: 1, Bytes: 1}); err != nil && wanted(err) {
			return
		} else if ctx.Err() != nil {
			m.Fatalf("the error did not come; the last was %v", err)
		}
	}
}

// Record settles messages with one outcome.
func (m QueueMember) Record(o driver.Outcome, all ...*driver.Received) {
	m.Helper()
	m.RecordAll(Settlements(o, all...)...)
}

// RecordAll settles messages.
func (m QueueMember) RecordAll(all ...driver.Settlement) {
	m.Helper()
	for i, err := range m.Settle(m.Context(), all) {
		if err != nil {
			m.Fatalf("settle %s: %v", all[i].ID, err)
		}
	}
}

// Settlements returns a settlement for each message, with one outcome and a reason.
func Settlements(o driver.Outcome, all ...*driver.Received) (each []driver.Settlement) {
	for _, m := range all {
		each = append(each, driver.Settlement{Received: m, Outcome: o, Reason: "reason of " + m.ID})
	}
	return each
}

// ReceivedIDs returns the ids of messages.
func ReceivedIDs(all []*driver.Received) (ids []string) {
	for _, m := range all {
		ids = append(ids, m.ID)
	}
	return ids
}
