package kafka

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// start consumes the topic of a scene.
func (s *scene) start(o *QueueOptions, handler queue.Handler) *queue.Consumer {
	s.Helper()
	c, err := queue.New(s.Context(), s.queue(o), s.topic, handler, &queue.Options{Lease: lease, MinPause: time.Millisecond, Hooks: quiet(s.T)})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { s.stop(c) })
	return c
}

func (s *scene) stop(c *queue.Consumer) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

func quiet(t *testing.T) *observe.Queue {
	return &observe.Queue{Failed: func(observe.QueueFailed) {}, Lost: func(observe.QueueLost) {},
		Trouble: func(e observe.QueueTrouble) { t.Logf("%s %s: %v", e.Op, e.Queue, e.Err) }}
}

// TestRebalance adds and removes consumers under load: every message is handled once, and those
// of a key in order, because a partition is given up when its handlers have returned.
func TestRebalance(t *testing.T) {
	for name, o := range map[string]*QueueOptions{"classic": nil, "server-side": {ServerSide: true}} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 4)
			const keys, each = 20, 100
			all := drivertest.QueueIDs(keys, 0, each)
			a := drivertest.NewQueueAudit()
			slow := func(ctx context.Context, m queue.Received) error {
				pause(context.WithoutCancel(ctx), 5*time.Millisecond)
				return a.Handle(ctx, m)
			}
			s.add(all[:len(all)/2]...)
			one := s.start(o, slow)
			a.Wait(t, 100)
			two, three := s.start(o, slow), s.start(o, slow)
			a.Wait(t, len(all)/4)
			s.stop(one)
			s.add(all[len(all)/2:]...)
			a.Wait(t, len(all)/2)
			s.stop(three)
			s.start(o, slow)
			a.Wait(t, len(all))
			s.stop(two)
			a.Check(t, all, 1)
		})
	}
}

// TestRevokeWaits: a partition is given up when the handlers that have its messages have
// returned; their contexts last so long.
func TestRevokeWaits(t *testing.T) {
	s := newScene(t, 4)
	all := drivertest.QueueIDs(20, 0, 2)
	s.add(all...)
	a := drivertest.NewQueueAudit()
	begun, moved, done := make(chan struct{}, len(all)), make(chan error, len(all)), make(chan struct{})
	s.start(nil, func(ctx context.Context, m queue.Received) error {
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
		<-begun
	}
	s.start(nil, a.Handle)
	if err := <-moved; err != nil {
		t.Errorf("a handler's context ended: %v", err)
	}
	close(done)
	a.Wait(t, len(all))
	a.Check(t, all, 1)
}

// TestZombie stops a consumer's process in a handler until the session has timed out, and lets
// it go on when another one has handled its messages. Its write is refused.
func TestZombie(t *testing.T) {
	s := newScene(t, 2)
	all := drivertest.QueueIDs(6, 0, 20)
	s.add(all...)
	a := drivertest.NewQueueAudit()
	guard, begun := a.Serve(t)
	child := exec.Command(os.Args[0], "-test.run=^$")
	child.Env = append(os.Environ(), "KAFKA_TEST_CHILD="+s.addr, "KAFKA_TEST_TOPIC="+s.topic, "KAFKA_TEST_GUARD="+guard)
	child.Stderr = os.Stderr
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	for range 6 {
		select {
		case <-begun:
		case <-time.After(time.Minute):
			t.Fatal("the process handles nothing")
		}
	}
	if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	other := s.start(nil, a.Handle)
	a.Wait(t, len(all))
	if err := child.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	testbed.Eventually(t, "the guard refuses the late write", time.Minute, func() bool { return a.Refused() > 0 })
	s.stop(other) // what comes now is for the process that was stopped
	more := drivertest.QueueIDs(6, 20, 5)
	s.add(more...)
	a.Wait(t, len(all)+len(more))
	a.Check(t, append(all, more...), 3)
}

// child is the process that is stopped. Its handlers announce themselves, take a while, and
// write.
func child(addr, topic, guard string) error {
	q, err := OpenQueue("kafka://"+addr, nil)
	if err != nil {
		return err
	}
	_, err = queue.New(context.Background(), q, topic, drivertest.WriteTo(guard, 500*time.Millisecond), &queue.Options{Lease: 2 * time.Second, Hooks: &observe.Queue{Log: observe.Silent}})
	if err != nil {
		return err
	}
	select {}
}

// TestBrokerRestarts: consumers go on after the broker was killed. Nothing is lost, and the
// order of keys holds.
func TestBrokerRestarts(t *testing.T) {
	t.Parallel()
	server := testbed.Kafka(t)
	s := &scene{t, server.Addr(), newTopic(t, server.Addr(), 4)}
	all := drivertest.QueueIDs(10, 0, 100)
	s.add(all...)
	a := drivertest.NewQueueAudit()
	slow := func(ctx context.Context, m queue.Received) error {
		pause(ctx, 5*time.Millisecond)
		return a.Handle(ctx, m)
	}
	s.start(nil, slow)
	s.start(nil, slow)
	a.Wait(t, len(all)/4)
	server.Kill()
	server.Restart()
	a.Wait(t, len(all))
	a.Check(t, all, 3)
}
