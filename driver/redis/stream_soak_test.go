package redis

import (
	"os"
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
	return queuetest.Start(s.T, q, "q", 6*time.Second, handler) // a busy machine renews late
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

// group is the queue for the tests of groups.
func (s *streamScene) group(addr string) drivertest.QueueGroup {
	return drivertest.QueueGroup{Add: s.add, Start: func(handler drivertest.QueueHandler) func() {
		return s.start(NewQueue(dial(s.T, addr), &s.options), handler).Stop
	}, Process: func(guard string) []string {
		return []string{"REDIS_TEST_CHILD=" + addr, "REDIS_TEST_PREFIX=" + s.options.Prefix, "REDIS_TEST_GUARD=" + guard}
	}}
}

// consumeStream is the process of a consumer; see group.
func consumeStream(addr, prefix, guard string) error {
	client, err := Dial("redis://" + addr)
	if err != nil {
		return err
	}
	return queuetest.Serve(NewQueue(client, &QueueOptions{Prefix: prefix}), "q", guard)
}

func TestQueueZombie(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	newStreamScene(t, dial(t, server.Addr()), QueueOptions{}).group(server.Addr()).Zombie(t)
}

// TestQueueServerIsKilled: consumers go on after the server was killed.
func TestQueueServerIsKilled(t *testing.T) {
	t.Parallel()
	server := durable(t, true).server
	newStreamScene(t, dial(t, server.Addr()), QueueOptions{}).group(server.Addr()).Survives(t, func() func() {
		server.Kill()
		server.Restart()
		return func() {}
	})
}
