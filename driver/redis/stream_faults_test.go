package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// queuesOnCluster runs the suite of queues, and uses a queue in the slots of every master.
func queuesOnCluster(t *testing.T, client rueidis.Client) {
	t.Run("queues", func(t *testing.T) {
		drivertest.RunQueue(t, drivertest.QueueHarness{Start: func(t *testing.T) drivertest.QueueBackend {
			return &streamQueues{NewQueue(client, &QueueOptions{Prefix: t.Name() + "/", Window: -1}), client}
		}})
	})
	for _, name := range []string{"qa", "qb", "qc", "qd"} {
		q := NewQueue(client, nil)
		testbed.OK(t, q.Add(t.Context(), name, driver.QueueMessage{ID: "1", Key: "a"}, driver.QueueMessage{ID: "2", Key: "b"}))
		c := drivertest.JoinQueue(t, q, name, driver.QueueOptions{})
		c.Record(driver.Ack, c.Take(2)...)
		testbed.OK(t, c.Close(t.Context()))
	}
}

// TestQueueClockSetBack: when the server's clock is set back by an hour, messages being handled are
// settled, later ones are handled, and tokens continue to rise.
func TestQueueClockSetBack(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	s := newStreamScene(t, dial(t, server.Addr()), QueueOptions{})
	s.add("a/1", "b/1")
	c := s.join(s.Queue, time.Minute)
	was := c.All(2)
	server.StepClock(-time.Hour)
	s.add("a/2", "b/2")
	c.Record(driver.Ack, was...)
	for i, m := range c.All(2) {
		if m.ID != []string{"a/2", "b/2"}[i] || m.Attempt != 1 || m.Claim.Token() <= was[i].Claim.Token() {
			t.Errorf("%s, attempt %d, token %v after %v", m.ID, m.Attempt, m.Claim.Token(), was[i].Claim.Token())
		}
	}
}

// TestQueueCutOff: a consumer that is cut off past its lease can neither settle nor write what
// another one has received, however late its requests arrive.
func TestQueueCutOff(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	path := testbed.NewProxy(t, server.Addr())
	client := dial(t, server.Addr())
	s := newStreamScene(t, client, QueueOptions{})
	fence := NewFence(client)
	write := func(m driver.Received) error {
		return fence.Enter(t.Context(), driver.Raise{Resource: m.Key, Token: m.Claim.Token()})
	}
	s.add("a/1", "a/2")
	one := s.join(NewQueue(dial(t, path.Addr()), &s.options), time.Second)
	was := one.All(2)
	testbed.OK(t, write(*was[0]))
	path.Cut()
	two := s.join(s.Queue, time.Minute)
	is := two.All(2)
	if is[0].Attempt <= was[0].Attempt || is[1].Attempt != 1 || is[0].Claim.Token() <= was[0].Claim.Token() {
		t.Errorf("%+v after %v", is[0], was[0].Claim.Token())
	}
	if was[0].Claim.Valid() {
		t.Error("the claim of the consumer that was cut off is valid")
	}
	testbed.OK(t, write(*is[0]))
	path.Heal()
	for _, o := range []driver.Outcome{driver.Ack, driver.Dead, driver.Retry, driver.Park, driver.Release} {
		testbed.Eventually(t, "the late settlement is answered", bound, func() bool {
			for _, err := range one.Settle(t.Context(), drivertest.Settlements(o, was...)) {
				if interlock.Kind(err) == interlock.Retryable || interlock.Kind(err) == interlock.Uncertain {
					return false
				}
				if !errors.Is(err, interlock.ErrLost) || interlock.Kind(err) != interlock.Definite {
					t.Fatalf("the zombie settled: %v", err)
				}
			}
			return true
		})
	}
	if err := write(*was[0]); !errors.Is(err, interlock.ErrStaleToken) {
		t.Errorf("the zombie wrote: %v", err)
	}
	two.Record(driver.Ack, is...)
	s.empty(0)
}

// TestQueueAnswersLost: a settlement with a lost answer is repeated, and so is an Add.
func TestQueueAnswersLost(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	path := testbed.NewProxy(t, server.Addr())
	client := dial(t, server.Addr())
	s := newStreamScene(t, client, QueueOptions{Window: time.Minute})
	q := NewQueue(dial(t, path.Addr()), &s.options)
	ids := []string{"a/1", "a/2", "b/1", "c/1"}
	s.add(ids...)
	c := s.join(q, time.Minute)
	all := c.All(4)
	settlements := drivertest.Settlements(driver.Ack, all[:3]...)
	settlements = append(settlements, driver.Settlement{Received: all[3], Outcome: driver.Dead, Reason: "dead"})
	lost := func(what string, ask func(ctx context.Context) []error) {
		t.Helper()
		path.DropReplies()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		for _, err := range ask(ctx) {
			if interlock.Kind(err) != interlock.Uncertain {
				t.Errorf("%s without an answer: %v", what, err)
			}
		}
		path.Heal()
	}
	lost("settle", func(ctx context.Context) []error { return c.Settle(ctx, settlements) })
	testbed.Eventually(t, "the settlement is repeated", bound, func() bool {
		for _, err := range c.Settle(t.Context(), settlements) {
			if err != nil && !errors.Is(err, interlock.ErrLost) {
				return false
			}
		}
		return true
	})
	letters, err := s.DeadLetters(t.Context(), "q", 0, 10)
	if err != nil || len(letters) != 1 || letters[0].ID != "c/1" {
		t.Fatalf("%+v, %v", letters, err)
	}
	testbed.OK(t, s.Discard(t.Context(), "q", "a reason", "me", letters[0].Place))
	s.empty(0)
	more := []driver.QueueMessage{{ID: "d/1", Key: "d"}, {ID: "d/2", Key: "d"}}
	lost("add", func(ctx context.Context) []error { return []error{q.Add(ctx, "q", more...)} })
	testbed.Eventually(t, "the messages are added again", bound, func() bool { return q.Add(t.Context(), "q", more...) == nil })
	other := s.join(s.Queue, time.Minute)
	all = other.All(2)
	if got := drivertest.ReceivedIDs(all); !slices.Equal(got, []string{"d/1", "d/2"}) {
		t.Errorf("received %v", got)
	}
	other.Record(driver.Ack, all...)
	s.empty(0)
}

// TestQueueIsDrainedWithoutMemory: a server whose memory is full refuses to add messages, and
// delivers stored ones.
func TestQueueIsDrainedWithoutMemory(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t, "--maxmemory-policy", "noeviction").Addr())
	s := newStreamScene(t, client, QueueOptions{})
	const n = 50
	for i := range n {
		testbed.OK(t, s.Add(t.Context(), "q", driver.QueueMessage{ID: fmt.Sprint(i), Key: fmt.Sprint(i % 7), Payload: make([]byte, 100)}))
	}
	mustDo(t, client, "CONFIG", "SET", "maxmemory", "1mb")
	if err := s.Add(t.Context(), "q", driver.QueueMessage{ID: "more"}); interlock.Kind(err) != interlock.Retryable || err == nil {
		t.Errorf("added without memory: %v", err)
	}
	c := s.join(s.Queue, time.Minute)
	for _, o := range []driver.Outcome{driver.Retry, driver.Dead} {
		for left := n; left > 0; {
			some, err := c.Receive(t.Context(), driver.QueueLimit{Messages: 100, Bytes: 1 << 20})
			testbed.OK(t, err)
			if o == driver.Retry {
				left = 0
			}
			c.Record(o, some...)
			left -= len(some)
		}
	}
	letters, err := s.DeadLetters(t.Context(), "q", 0, 100)
	if err != nil || len(letters) != n {
		t.Fatalf("%d letters, %v", len(letters), err)
	}
	var places []int64
	for _, l := range letters {
		places = append(places, l.Place)
	}
	testbed.OK(t, s.Discard(t.Context(), "q", "a reason", "me", places...))
	s.empty(0)
}

// TestQueueEvicts: a server that may evict keys without a time to live is refused.
func TestQueueEvicts(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t, "--maxmemory-policy", "allkeys-lru").Addr())
	s := newStreamScene(t, client, QueueOptions{})
	c := s.join(s.Queue, time.Minute)
	_, err := c.Receive(t.Context(), driver.QueueLimit{Messages: 1, Bytes: 1})
	for what, err := range map[string]error{"add": s.Add(t.Context(), "q", driver.QueueMessage{ID: "1"}), "receive": err} {
		if !errors.Is(err, ErrEviction) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestQueueGroupIsGone: a deleted consumer group or stream is created again. Messages in the
// stream are neither lost nor delivered twice.
func TestQueueGroupIsGone(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	s := newStreamScene(t, client, QueueOptions{})
	stream := s.options.Prefix + "q"
	c := s.join(s.Queue, time.Minute)
	s.add("a/1", "b/1")
	held := c.All(2)
	s.add("c/1")
	mustDo(t, client, "XGROUP", "DESTROY", stream, s.options.Group)
	next := c.Take(1)
	if next[0].ID != "c/1" {
		t.Errorf("received %v", drivertest.ReceivedIDs(next))
	}
	c.Record(driver.Ack, append(held, next...)...)
	s.empty(0)
	raw(t, client, "DEL", stream)
	s.add("d/1")
	c.Record(driver.Ack, c.Take(1)...)
	s.empty(0)
}

// TestQueueServerRestarts: a server that writes its log at once loses no message, attempt, pause,
// parked key or lease in a crash.
func TestQueueServerRestarts(t *testing.T) {
	t.Parallel()
	server := durable(t, true).server
	client := dial(t, server.Addr())
	s := newStreamScene(t, client, QueueOptions{})
	c := s.join(s.Queue, time.Minute)
	s.add("a/1", "a/2", "b/1", "c/1", "d/1")
	all := map[string]*driver.Received{}
	for _, m := range c.All(5) {
		all[m.ID] = m
	}
	c.Record(driver.Retry, all["a/1"])
	c.Record(driver.Release, all["a/2"])
	c.Record(driver.Park, all["b/1"])
	c.Record(driver.Dead, all["c/1"])
	server.Kill()
	server.Restart()
	testbed.Eventually(t, "a settlement after the restart", bound, func() bool {
		return c.Settle(t.Context(), drivertest.Settlements(driver.Ack, all["d/1"]))[0] == nil
	})
	got := c.All(2)
	if ids := drivertest.ReceivedIDs(got); !slices.Equal(ids, []string{"a/1", "a/2"}) || got[0].Attempt != 2 || got[1].Attempt != 1 || got[0].Claim.Token() <= all["a/1"].Claim.Token() {
		t.Errorf("%+v", got)
	}
	testbed.OK(t, s.Resume(t.Context(), "q", "b", "a reason", "me"))
	c.Record(driver.Ack, append(got, c.Take(1)...)...)
	letters, err := s.DeadLetters(t.Context(), "q", 0, 10)
	if err != nil || len(letters) != 1 {
		t.Fatalf("%v, %v", letters, err)
	}
	testbed.OK(t, s.Discard(t.Context(), "q", "a reason", "me", letters[0].Place))
	s.empty(0)
}

// TestQueueDuringAMove: while a queue's slot moves to another master, its scripts are refused as
// a whole, even if each of its keys is still there. Nothing is lost or changed.
func TestQueueDuringAMove(t *testing.T) {
	t.Parallel()
	cluster := testbed.RedisCluster(t, false)
	client := dialCluster(t, cluster)
	s := newStreamScene(t, client, QueueOptions{})
	testbed.OK(t, s.Add(t.Context(), "q", driver.QueueMessage{ID: "unique", Unique: "u"}))
	s.add("a/1", "b/1", "c/1")
	c := s.join(s.Queue, time.Minute)
	held := c.Take(1)
	c.Record(driver.Dead, c.Take(1)...)
	c.Record(driver.Dead, c.Take(1)...)
	letters, err := s.DeadLetters(t.Context(), "q", 0, 10)
	if err != nil || len(letters) != 2 {
		t.Fatal(letters, err)
	}
	testbed.OK(t, s.Discard(t.Context(), "q", "a reason", "me", letters[0].Place))
	keys := s.mustKeys()
	if n, err := raw(t, client, append([]string{"EXISTS"}, keys...)...).AsInt64(); err != nil || int(n) != len(keys) {
		t.Fatalf("%d of %d keys exist, %v", n, len(keys), err)
	}
	slot := slotOf(keys[0])
	from := slot * 3 / slots
	finish := cluster.Migrate(t, slot, from, (from+1)%3)
	for _, err := range append(c.Settle(t.Context(), drivertest.Settlements(driver.Ack, held...)), s.Add(t.Context(), "q", driver.QueueMessage{ID: "lost"})) {
		if interlock.Kind(err) != interlock.Retryable || err == nil {
			t.Errorf("in the middle of the move: %v", err)
		}
	}
	finish()
	insist(t, "settle after the move", func(context.Context) error {
		return c.Settle(t.Context(), drivertest.Settlements(driver.Ack, held...))[0]
	})
	c.Record(driver.Ack, c.Take(1)...)
	testbed.OK(t, s.Discard(t.Context(), "q", "a reason", "me", letters[1].Place))
	s.empty(0)
}
