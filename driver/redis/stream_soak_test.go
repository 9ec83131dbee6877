package redis

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/queue/queuetest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// start handles the messages of a queue.
func (s *streamScene) start(q driver.Queue, handler queue.Handler) queuetest.Consumer {
	s.Helper()
	return queuetest.Start(s.T, q, "q", 2*time.Second, handler)
}

// TestQueueSoak runs drivertest.RunQueueSoak for INTERLOCK_SOAK_STREAMS, a duration.
func TestQueueSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("INTERLOCK_SOAK_STREAMS"))
	if err != nil {
		t.Skip("INTERLOCK_SOAK_STREAMS is not set to a duration")
	}
	server := durable(t, true).server
	s := newStreamScene(t, dial(t, server.Addr()), QueueOptions{})
	drivertest.RunQueueSoak(t, length, drivertest.QueueSoak{Add: s.add, Retry: queue.Retry, Dead: queue.Dead, Restart: func() {
		server.Kill()
		server.Restart()
		testbed.Eventually(t, "the server answers the operator", bound, func() bool { return raw(t, s.client, "PING").Error() == nil })
	}, Join: func(handler drivertest.QueueHandler) drivertest.SoakMember {
		path := testbed.NewProxy(t, server.Addr())
		return drivertest.SoakMember{Path: path, Consumer: s.start(NewQueue(dial(t, path.Addr()), &s.options), handler), Done: func() bool {
			all, err := s.Status(t.Context())
			return err == nil && (len(all) == 0 || all[0].Messages == 0)
		}}
	}})
	letters, err := s.DeadLetters(t.Context(), "q", 0, 1000)
	testbed.OK(t, err)
	for _, l := range letters {
		testbed.OK(t, s.Discard(t.Context(), "q", "the end", "soak", l.Place))
	}
	s.empty(0)
	t.Logf("%d dead letters", len(letters))
}

// TestQueueStopped stops a consumer's process in a handler until its lease has expired, and
// continues it after another one has handled its messages. Its write is rejected.
func TestQueueStopped(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	s := newStreamScene(t, dial(t, server.Addr()), QueueOptions{})
	all := drivertest.QueueIDs(6, 0, 20)
	s.add(all...)
	audit := drivertest.NewQueueAudit()
	guard, begun := audit.Serve(t)
	child := exec.Command(os.Args[0], "-test.run=^TestQueueChild$", "-test.timeout=10m")
	child.Env = append(os.Environ(), "REDIS_TEST_QUEUE=redis://"+server.Addr(), "REDIS_TEST_PREFIX="+s.options.Prefix, "REDIS_TEST_GUARD="+guard)
	child.Stderr = os.Stderr
	testbed.OK(t, child.Start())
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
	testbed.OK(t, child.Process.Signal(syscall.SIGSTOP))
	other := s.start(s.Queue, audit.Handle)
	audit.Wait(t, len(all))
	testbed.OK(t, child.Process.Signal(syscall.SIGCONT))
	testbed.Eventually(t, "the guard refuses the late write", time.Minute, func() bool { return audit.Refused() > 0 })
	other.Stop() // later messages are for the stopped process
	more := drivertest.QueueIDs(6, 20, 5)
	s.add(more...)
	audit.Wait(t, len(all)+len(more))
	audit.Check(t, append(all, more...), 3)
}

// TestQueueChild is the process that is stopped.
func TestQueueChild(t *testing.T) {
	url := os.Getenv("REDIS_TEST_QUEUE")
	if url == "" {
		t.Skip("it is a part of TestQueueStopped")
	}
	q := NewQueue(dial(t, url[len("redis://"):]), &QueueOptions{Prefix: os.Getenv("REDIS_TEST_PREFIX")})
	testbed.OK(t, queuetest.Serve(q, "q", os.Getenv("REDIS_TEST_GUARD")))
}

// TestQueueConsumers: consumers of flow/queue share the messages while the server is killed.
// Nothing is lost, and keys keep their order.
func TestQueueConsumers(t *testing.T) {
	t.Parallel()
	server := durable(t, true).server
	s := newStreamScene(t, dial(t, server.Addr()), QueueOptions{})
	all := drivertest.QueueIDs(10, 0, 100)
	s.add(all...)
	audit := drivertest.NewQueueAudit()
	slow := func(ctx context.Context, m queue.Received) error {
		pause(ctx, 5*time.Millisecond)
		return audit.Handle(ctx, m)
	}
	s.start(s.Queue, slow)
	s.start(NewQueue(dial(t, server.Addr()), &s.options), slow)
	audit.Wait(t, len(all)/4)
	server.Kill()
	server.Restart()
	audit.Wait(t, len(all))
	audit.Check(t, all, 3)
}
