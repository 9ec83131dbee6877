package drivertest

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// QueueGroup is a queue of several partitions and its consumers. Its methods are tests; each
// needs its own queue.
type QueueGroup struct {
	// Add appends messages with the given ids, KEY/NUMBER.
	Add func(ids ...string)
	// Start starts a consumer and returns a function that closes it.
	Start func(handler QueueHandler) (stop func())
	// Process returns the environment that makes this test binary a consumer, whose handlers write
	// to the audit at an address: see [WriteTo].
	Process func(guard string) (env []string)
}

// QueueHandler is the handler type of flow/queue.
type QueueHandler = func(context.Context, driver.Received) error

// slowly is a handler that takes 5 ms, even if its claim ends.
func (a *QueueAudit) slowly(ctx context.Context, m driver.Received) error {
	pause(context.WithoutCancel(ctx), 5*time.Millisecond)
	return a.Handle(ctx, m)
}

// Rebalance adds and removes consumers under load. Every message is handled once and each key in
// order, because a partition is released when its handlers have returned.
func (g QueueGroup) Rebalance(t *testing.T) {
	const keys, each = 20, 100
	all := QueueIDs(keys, 0, each)
	a := NewQueueAudit()
	g.Add(all[:len(all)/2]...)
	one := g.Start(a.slowly)
	a.Wait(t, 100)
	two, three := g.Start(a.slowly), g.Start(a.slowly)
	a.Wait(t, len(all)/4)
	one()
	g.Add(all[len(all)/2:]...)
	a.Wait(t, len(all)/2)
	three()
	g.Start(a.slowly)
	a.Wait(t, len(all))
	two()
	a.Check(t, all, 1)
}

// RevokeWaits checks that a partition is released when the handlers of its messages have returned,
// and that their contexts do not end before that.
func (g QueueGroup) RevokeWaits(t *testing.T) {
	all := QueueIDs(20, 0, 2)
	g.Add(all...)
	a := NewQueueAudit()
	begun, moved, done := make(chan struct{}, len(all)), make(chan error, len(all)), make(chan struct{})
	g.Start(func(ctx context.Context, m driver.Received) error {
		begun <- struct{}{}
		select {
		case <-m.Claim.Revoked():
			pause(context.WithoutCancel(ctx), 200*time.Millisecond)
			moved <- ctx.Err()
		case <-done:
		}
		return a.Handle(ctx, m)
	})
	for range 20 {
		testbed.Receive(t, begun, "word that a message is handled")
	}
	g.Start(a.Handle)
	if err := testbed.Receive(t, moved, "word that a claim is revoked"); err != nil {
		t.Errorf("a handler's context ended: %v", err)
	}
	close(done)
	a.Wait(t, len(all))
	a.Check(t, all, 1)
}

// Zombie stops a consumer's process in a handler until its lease has expired, and continues it
// when another consumer has handled its messages. Its write must be rejected.
func (g QueueGroup) Zombie(t *testing.T) {
	all := QueueIDs(6, 0, 20)
	g.Add(all...)
	a := NewQueueAudit()
	guard, begun := a.Serve(t)
	process := g.spawn(t, guard)
	for range 6 {
		testbed.Receive(t, begun, "word that the process handles a message")
	}
	process.Pause()
	stop := g.Start(a.Handle)
	a.Wait(t, len(all))
	process.Resume()
	for end := time.Now().Add(time.Minute); a.Refused() == 0; pause(t.Context(), 10*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no late write was refused")
		}
	}
	stop() // further messages go to the process that was stopped
	more := QueueIDs(6, 20, 5)
	g.Add(more...)
	a.Wait(t, len(all)+len(more))
	a.Check(t, append(all, more...), 3)
}

// spawn starts a process that consumes until the test ends.
func (g QueueGroup) spawn(t *testing.T, guard string) *testbed.Process {
	t.Helper()
	return testbed.Start(t, testbed.Program{Path: os.Args[0], Args: []string{"-test.run=^$"}, Env: g.Process(guard)})
}

// Survives kills a consumer's process in a handler, and then injects faults into the queue's servers,
// one after the other, while two consumers handle messages. A fault returns its repair, which
// is called when the messages of its time are handled. No message is lost, keys stay in order, and
// tokens never fall.
func (g QueueGroup) Survives(t *testing.T, faults ...func() (repair func())) {
	const keys, each = 10, 60
	a := NewQueueAudit()
	guard, begun := a.Serve(t)
	process := g.spawn(t, guard)
	all := QueueIDs(keys, 0, each)
	g.Add(all...)
	testbed.Receive(t, begun, "word that the process handles a message")
	g.Start(a.slowly)
	g.Start(a.slowly)
	process.Kill()
	a.Wait(t, len(all))
	for i, fault := range faults {
		more := QueueIDs(keys, (i+1)*each, each)
		g.Add(more[:len(more)/2]...)
		a.Wait(t, len(all)+len(more)/4)
		repair := fault()
		g.Add(more[len(more)/2:]...)
		all = append(all, more...)
		a.Wait(t, len(all))
		repair()
	}
	a.Check(t, all, 3)
	if n := a.Refused(); n > 0 {
		t.Errorf("%d writes had tokens that fell", n)
	}
}

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
