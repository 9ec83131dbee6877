package redis

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestQueueSuite(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB, ...string) *testbed.Server{"redis": testbed.Redis, "valkey": testbed.Valkey} {
		t.Run(name, func(t *testing.T) {
			client := dial(t, start(t).Addr())
			drivertest.RunQueue(t, drivertest.QueueHarness{Start: func(t *testing.T) drivertest.QueueBackend {
				return &streamQueues{NewQueue(client, &QueueOptions{Prefix: t.Name() + "/", Group: "suite", Window: -1}), client}
			}})
		})
	}
}

// streamQueues are the queues of one test of the suite.
type streamQueues struct {
	*Queue
	client rueidis.Client
}

func (q *streamQueues) Add(t *testing.T, name string, messages ...driver.QueueMessage) error {
	return q.Queue.Add(t.Context(), name, messages...)
}

func (q *streamQueues) letters(t *testing.T, name string) []DeadLetter {
	t.Helper()
	all, err := q.Queue.DeadLetters(t.Context(), name, 0, 1000)
	testbed.OK(t, err)
	return all
}

func (q *streamQueues) DeadLetters(t *testing.T, name string) (ids []string) {
	t.Helper()
	for _, l := range q.letters(t, name) {
		if l.Reason != "reason of "+l.ID || time.Since(l.Died) > time.Hour || l.Attempt < 1 {
			t.Errorf("%+v", l)
		}
		ids = append(ids, l.ID)
	}
	return ids
}

func (q *streamQueues) Replay(t *testing.T, name string, ids ...string) {
	t.Helper()
	var places []int64
	for _, l := range q.letters(t, name) {
		if slices.Contains(ids, l.ID) {
			places = append(places, l.Place)
		}
	}
	testbed.OK(t, q.Queue.Replay(t.Context(), name, "a reason", "me", places...))
}

func (q *streamQueues) Resume(t *testing.T, name, key string) {
	t.Helper()
	testbed.OK(t, q.Queue.Resume(t.Context(), name, key, "a reason", "me"))
}

// Age backdates ready lanes, after a claim of no messages has indexed them.
func (q *streamQueues) Age(t *testing.T, name string, d time.Duration) {
	t.Helper()
	keys, err := q.keys("age", name)
	testbed.OK(t, err)
	s := &streamStore{q.Queue, name, keys}
	if some, _, err := s.Claim(t.Context(), "", time.Second, driver.QueueLimit{}); err != nil || len(some) > 0 {
		t.Fatalf("%v, %v", some, err)
	}
	ready := keys[slices.IndexFunc(keys, func(key string) bool { return strings.Contains(key, "}:queue:ready:") })]
	for _, lane := range lanesOf(t, q.client, ready) {
		raw(t, q.client, "ZINCRBY", ready, "-"+milliseconds(d), lane)
	}
}

func lanesOf(t *testing.T, client rueidis.Client, key string) []string {
	t.Helper()
	all, err := raw(t, client, "ZRANGE", key, "0", "-1").AsStrSlice()
	testbed.OK(t, err)
	return all
}
