package redis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/leasequeue"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// streamScene is the queue of one test.
type streamScene struct {
	*testing.T
	*Queue
	client rueidis.Client
}

func newStreamScene(t *testing.T, client rueidis.Client, o QueueOptions) *streamScene {
	t.Helper()
	o.Prefix = t.Name() + "/"
	return &streamScene{t, NewQueue(client, &o), client}
}

func (s *streamScene) join(q *Queue, lease time.Duration) drivertest.QueueMember {
	s.Helper()
	return drivertest.JoinQueue(s.T, q, "q", driver.QueueOptions{Owner: "test", Lease: lease})
}

// add adds messages with the ids "KEY/N"; a KEY of "-" means no key.
func (s *streamScene) add(ids ...string) {
	s.Helper()
	var all []driver.QueueMessage
	for _, id := range ids {
		key, _, _ := strings.Cut(id, "/")
		all = append(all, driver.QueueMessage{ID: id, Key: strings.Trim(key, "-")})
	}
	testbed.OK(s, s.Add(s.Context(), "q", all...))
}

// empty requires that only the counters and n entries are left.
func (s *streamScene) empty(entries int) {
	s.Helper()
	keys := s.mustKeys()
	if n, err := raw(s, s.client, "XLEN", keys[0]).AsInt64(); err != nil || int(n) != entries {
		s.Errorf("%d entries, %v; want %d", n, err, entries)
	}
	if n, err := raw(s, s.client, "XPENDING", keys[0], s.options.Group).ToArray(); err != nil || n[0].String() != "0" && intOf(n[0]) != 0 {
		s.Errorf("pending: %v, %v", n, err)
	}
	if fields, err := raw(s, s.client, "HKEYS", keys[1]).AsStrSlice(); err != nil || len(fields) != 2 {
		s.Errorf("the lanes are %v, %v", fields, err)
	}
	for _, key := range keys[2:8] {
		if n, err := raw(s, s.client, "EXISTS", key).AsInt64(); err != nil || n != 0 {
			s.Errorf("%s is left", key)
		}
	}
}

func intOf(m rueidis.RedisMessage) int64 {
	n, _ := m.AsInt64()
	return n
}

// TestQueueEntries: entries of other clients are messages, whatever their fields.
func TestQueueEntries(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	s := newStreamScene(t, client, QueueOptions{})
	stream := s.options.Prefix + "q"
	testbed.OK(t, errors.Join(NewStream(client, &StreamOptions{Prefix: s.options.Prefix}).Publish(t.Context(), []driver.Message{
		{ID: "sink", Topic: "q", Key: "k\n\x00 1", Headers: map[string]string{"a": "b"}, Payload: []byte("p")}})...))
	raw(t, client, "XADD", stream, "*", "else", "x")
	raw(t, client, "XADD", stream, "*", "id", "odd", "priority", "nan", "delay", "-1e99", "headers", "{", "payload", "y")
	raw(t, client, "XADD", stream, "*", "id", "far", "delay", "1e400")
	c := s.join(s.Queue, time.Minute)
	all := c.All(3)
	if m := all[0]; m.ID != "sink" || m.Key != "k\n\x00 1" || m.Headers["a"] != "b" || string(m.Payload) != "p" || time.Since(m.Added) > time.Hour {
		t.Errorf("%+v", m)
	}
	if m := all[1]; !strings.HasSuffix(m.ID, "-0") && !strings.Contains(m.ID, "-") || len(m.Payload) > 0 {
		t.Errorf("%+v", m)
	}
	if m := all[2]; m.ID != "odd" || m.Headers["headers"] != "{" || string(m.Payload) != "y" {
		t.Errorf("%+v", m)
	}
	c.Record(driver.Ack, all...)
	raw(t, client, "XTRIM", stream, "MAXLEN", "0") // also "far"
	s.add("a/1", "a/2", "a/3")
	raw(t, client, "XTRIM", stream, "MAXLEN", "1")
	c.Record(driver.Ack, c.Take(1)...)
	s.add("a/4", "a/5")
	m := c.All(2)
	raw(t, client, "XTRIM", stream, "MAXLEN", "0")
	c.Record(driver.Retry, m...)
	s.add("a/6")
	m = c.Take(1)
	if m[0].ID != "a/6" || m[0].Attempt != 1 {
		t.Errorf("%+v", m[0])
	}
	c.Record(driver.Ack, m...)
}

// TestQueueTrimmedUnique: a unique message that was trimmed from the stream holds up no later one, once a
// consumer has found it missing. While a handler has it, it does.
func TestQueueTrimmedUnique(t *testing.T) {
	t.Parallel()
	s := newStreamScene(t, dial(t, testbed.Redis(t).Addr()), QueueOptions{})
	trim := func() { raw(t, s.client, "XTRIM", s.options.Prefix+"q", "MAXLEN", "0") }
	add := func(id string) {
		t.Helper()
		testbed.OK(t, s.Add(t.Context(), "q", driver.QueueMessage{ID: id, Unique: "u"}))
	}
	add("1")
	trim() // before any consumer
	add("2")
	c := s.join(s.Queue, time.Minute)
	m := c.Take(1)
	trim()
	add("3")
	c.Nothing(100 * time.Millisecond)
	c.Record(driver.Retry, m...)
	c.Nothing(100 * time.Millisecond) // it finds 2 missing
	add("4")
	if m = c.Take(1); m[0].ID != "4" {
		t.Errorf("%+v", m[0])
	}
	c.Record(driver.Ack, m...)
	s.empty(0)
}

// TestQueueLeavesNothing: finished messages leave nothing, in each way.
func TestQueueLeavesNothing(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	for _, o := range []QueueOptions{{Window: -1}, {Window: time.Minute, Keep: true}} {
		t.Run(fmt.Sprint(o.Keep), func(t *testing.T) {
			s := newStreamScene(t, client, o)
			c := s.join(s.Queue, time.Minute)
			s.add("a/1", "a/2", "b/1", "-/1", "-/2")
			testbed.OK(t, s.Add(t.Context(), "q", driver.QueueMessage{ID: "u/1", Key: "u", Unique: "u"}, driver.QueueMessage{ID: "v/1", Unique: "v"}))
			all := c.All(7)
			c.Record(driver.Retry, all...)
			all = c.All(7)
			c.Record(driver.Dead, all...)
			letters, err := s.DeadLetters(t.Context(), "q", 0, 10)
			if err != nil || len(letters) != 7 || letters[0].ID != "a/1" || letters[0].Attempt != 2 || letters[0].Reason != "reason of a/1" {
				t.Fatalf("%+v, %v", letters, err)
			}
			if some, err := s.DeadLetters(t.Context(), "q", letters[1].Place, 1); err != nil || len(some) != 1 || some[0].ID != letters[2].ID {
				t.Errorf("after the second: %v, %v", some, err)
			}
			var places []int64
			for _, l := range letters {
				places = append(places, l.Place)
			}
			for _, dispose := range []func(context.Context, string, string, string, ...int64) error{s.Replay, s.Discard} {
				if err := dispose(t.Context(), "q", "a reason", "me", places[0], 1000); !errors.Is(err, ErrNotFound) || interlock.Kind(err) != interlock.Definite {
					t.Errorf("a letter that is not there: %v", err)
				}
			}
			testbed.OK(t, s.Discard(t.Context(), "q", "a reason", "me", places[:3]...))
			testbed.OK(t, s.Replay(t.Context(), "q", "a reason", "me", places[3:]...))
			all = c.All(4)
			c.Record(driver.Park, all...)
			if err := s.Resume(t.Context(), "q", "other", "a reason", "me"); !errors.Is(err, ErrNotFound) {
				t.Errorf("a key that is not parked: %v", err)
			}
			testbed.OK(t, s.Resume(t.Context(), "q", "u", "a reason", "me"))
			c.Record(driver.Ack, c.Take(1)...)
			testbed.OK(t, s.Add(t.Context(), "q", driver.QueueMessage{ID: "u/2", Unique: "u"}, driver.QueueMessage{ID: "v/2", Unique: "v"}))
			all = c.All(2)
			if ids := drivertest.ReceivedIDs(all); !slices.Equal(ids, []string{"u/2", "v/2"}) {
				t.Errorf("unique messages that ended block others: %v", ids)
			}
			c.Record(driver.Ack, all...)
			// Messages without a key that are parked: Resume names keys, so they stay.
			keys := s.mustKeys()
			if n, err := raw(t, client, "ZCARD", keys[2]).AsInt64(); err != nil || n != 3 {
				t.Errorf("%d messages are left, %v", n, err)
			}
		})
	}
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprint("all/", keep), func(t *testing.T) {
			s := newStreamScene(t, client, QueueOptions{Keep: keep})
			s.add("a/1", "a/2", "-/1")
			c := s.join(s.Queue, time.Minute)
			c.Record(driver.Retry, c.All(3)...)
			all := c.All(3)
			slices.Reverse(all)
			c.Record(driver.Ack, all...)
			s.empty(map[bool]int{true: 3}[keep])
		})
	}
}

// TestQueueAddsOnce: an id is added once within the window.
func TestQueueAddsOnce(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	s := newStreamScene(t, client, QueueOptions{Window: time.Hour})
	short := s.options
	short.Window = 300 * time.Millisecond
	again := func() {
		testbed.OK(t, NewQueue(client, &short).Add(t.Context(), "q", driver.QueueMessage{ID: "a/0", Key: "a"}))
	}
	again()
	s.add("a/1", "a/2", "a/1")
	s.add("a/2", "a/3")
	c := s.join(s.Queue, time.Minute)
	all := c.All(4)
	if ids := drivertest.ReceivedIDs(all); !slices.Equal(ids, []string{"a/0", "a/1", "a/2", "a/3"}) {
		t.Fatalf("received %v", ids)
	}
	c.Record(driver.Ack, all...)
	testbed.Eventually(t, "the window ends", bound, func() bool {
		again()
		n, err := raw(t, client, "XLEN", s.options.Prefix+"q").AsInt64()
		return err == nil && n == 1
	})
	var many []string
	for i := range 3 * streamRows {
		many = append(many, fmt.Sprintf("b/%04d", i))
	}
	s.add(many...)
	c.Record(driver.Ack, c.Take(1)...) // a/0
	var got []string
	for len(got) < len(many) {
		some, err := c.Receive(t.Context(), driver.QueueLimit{Messages: 100, Bytes: 1 << 20})
		testbed.OK(t, err)
		c.Record(driver.Ack, some...)
		got = append(got, drivertest.ReceivedIDs(some)...)
	}
	if !slices.Equal(got, many) {
		t.Errorf("received %v", got)
	}
	s.empty(0)
	testbed.OK(t, NewQueue(client, &QueueOptions{Window: time.Microsecond}).Add(t.Context(), "brief", driver.QueueMessage{ID: "1"}))
	raw(t, client, "SET", s.options.Prefix+"wrong", "x")
	for range 2 { // a refused message is not remembered
		if err := s.Add(t.Context(), "wrong", driver.QueueMessage{ID: "1"}); interlock.Kind(err) != interlock.Definite || err == nil {
			t.Errorf("added to a string: %v", err)
		}
	}
	for _, m := range []driver.QueueMessage{{Delay: -1}, {Priority: 2}, {Key: strings.Repeat("x", driver.MaxName+1)}, {ID: "\xff"}} {
		if err := s.Add(t.Context(), "q", m); interlock.Kind(err) != interlock.Definite || err == nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
	for _, name := range []string{"", reserved + "x"} {
		if err := NewQueue(client, nil).Add(t.Context(), name, driver.QueueMessage{}); interlock.Kind(err) != interlock.Bug {
			t.Errorf("queue %q: %v", name, err)
		}
	}
}

// TestQueueCosts: a batch costs a claim and a settlement, and an idle consumer little.
func TestQueueCosts(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	client := dial(t, server.Addr())
	s := newStreamScene(t, client, QueueOptions{})
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprintf("%d/1", i))
	}
	store := s.store()
	_, _, err := store.Claim(t.Context(), "", time.Minute, driver.QueueLimit{})
	testbed.OK(t, err)
	_, _, err = store.Renew(t.Context(), nil, time.Minute)
	testbed.OK(t, err)
	before := calls(t, client)
	s.add(ids...)
	spent := since(t, client, before)
	if n := spent["evalsha"]; n != 1 || sum(spent) > 205 { // an XADD and a SET of each
		t.Errorf("100 messages are added by %d requests: %v", n, spent)
	}
	c := s.join(s.Queue, time.Minute)
	before = calls(t, client)
	all := c.All(100)
	spent = since(t, client, before)
	if n := spent["evalsha"]; n != 1 {
		t.Errorf("100 messages are received by %d requests", n)
	}
	if n := sum(spent); n > 13 {
		t.Errorf("100 messages are received by %d commands: %v", n, spent)
	}
	before = calls(t, client)
	c.Record(driver.Ack, all...)
	spent = since(t, client, before)
	if n := spent["evalsha"] + spent["eval"]; n > 2 { // the script is new to the server
		t.Errorf("100 messages are settled by %d requests", n)
	}
	if n := sum(spent); n > 12 {
		t.Errorf("100 messages are settled by %d commands: %v", n, spent)
	}
	for round, first := range []int{100, 1} {
		s.add(drivertest.QueueIDs(1000, round, 1)...)
		before = calls(t, client)
		for left, most := 1000, first; left > 0; most = 100 {
			some, err := c.Receive(t.Context(), driver.QueueLimit{Messages: most, Bytes: 1 << 20})
			testbed.OK(t, err)
			c.Record(driver.Ack, some...)
			left -= len(some)
		}
		// What a claim reads and does not lease goes through the index, by commands of its own.
		if n := since(t, client, before)["zrangebylex"]; first == 100 && n > 0 || n > 4*streamAhead {
			t.Errorf("if the first claim takes %d messages, the index is read by %d commands", first, n)
		}
	}
	before = calls(t, client)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := c.Receive(ctx, driver.QueueLimit{Messages: 1, Bytes: 1}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if n := since(t, client, before)["evalsha"]; n > 10+3 { // 1, 2, 4 … ms, then each second
		t.Errorf("an idle consumer sent %d claims in three seconds", n)
	}
}

// TestQueueReadsOn: a claim that leases nothing, because all that it read is of a parked key, is repeated at
// once while there is more.
func TestQueueReadsOn(t *testing.T) {
	t.Parallel()
	s := newStreamScene(t, dial(t, testbed.Redis(t).Addr()), QueueOptions{})
	c := s.join(s.Queue, time.Minute)
	s.add("a/0")
	c.Record(driver.Park, c.Take(1)...)
	var ids []string
	for i := range 3 * streamMost {
		ids = append(ids, fmt.Sprintf("a/%d", i+1))
	}
	s.add(append(ids, "b/0")...)
	for claims := 0; ; claims++ {
		some, wait, err := s.store().Claim(t.Context(), "", time.Minute, driver.QueueLimit{Messages: 1, Bytes: 1})
		testbed.OK(t, err)
		if len(some) > 0 {
			break
		}
		if wait != time.Millisecond || claims > 3*streamMost/streamAhead {
			t.Fatalf("claim %d leases nothing, and waits %v", claims, wait)
		}
	}
}

// TestQueueAllocations bounds the allocations of a message that is received and settled, client included,
// and requires that Redis does not store the lanes as a list, which it searches from the start.
func TestQueueAllocations(t *testing.T) {
	client := dial(t, testbed.Redis(t).Addr())
	s := newStreamScene(t, client, QueueOptions{})
	const n = 200
	ids := make([]string, n)
	c, err := s.Join(t.Context(), "q", driver.QueueOptions{})
	testbed.OK(t, err)
	least := uint64(math.MaxUint64)
	for round := range 3 {
		for i := range ids {
			ids[i] = fmt.Sprintf("%d/%d", i, round)
		}
		s.add(ids...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		all, err := c.Receive(t.Context(), driver.QueueLimit{Messages: n, Bytes: 1 << 20})
		testbed.OK(t, err)
		testbed.OK(t, errors.Join(c.Settle(t.Context(), drivertest.Settlements(driver.Ack, all...))...))
		runtime.ReadMemStats(&after)
		if len(all) != n {
			t.Fatalf("received %d messages", len(all))
		}
		least = min(least, after.Mallocs-before.Mallocs)
	}
	if least > 12*n && !testbed.Race { // which empties pools
		t.Errorf("%d messages took %d allocations", n, least)
	}
	if encoding, err := raw(t, client, "OBJECT", "ENCODING", s.mustKeys()[1]).ToString(); err != nil || encoding != "hashtable" {
		t.Errorf("the lanes are a %s, %v", encoding, err)
	}
	testbed.OK(t, c.Close(t.Context()))
}

// sum returns the number of commands, without those of connections.
func sum(counts map[string]int) (n int) {
	for name, count := range counts {
		if !slices.Contains([]string{"hello", "client|setinfo", "info", "xread"}, name) {
			n += count
		}
	}
	return n
}

// TestQueueExpiredInParts: messages of an expired lease that are received one by one keep their order,
// and only the first of them has one more attempt. A leased key is not ready.
func TestQueueExpiredInParts(t *testing.T) {
	t.Parallel()
	s := newStreamScene(t, dial(t, testbed.Redis(t).Addr()), QueueOptions{})
	one, two := s.join(s.Queue, 200*time.Millisecond), s.join(s.Queue, time.Minute)
	s.add("a/1", "a/2", "a/3")
	one.All(3)
	one.Crash()
	for i, id := range []string{"a/1", "a/2", "a/3"} {
		m := two.Take(1)
		if m[0].ID != id || (m[0].Attempt == 2) != (i == 0) {
			t.Errorf("received %+v, want %s", m[0], id)
		}
		if lanes := lanesOf(t, s.client, s.mustKeys()[3]); len(lanes) > 0 {
			t.Errorf("%v are leased and ready", lanes)
		}
		two.Record(driver.Ack, m...)
	}
	s.empty(0)
}

// TestQueueWakes: an entry of any client is noticed at once, long before the next poll.
func TestQueueWakes(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	s := newStreamScene(t, client, QueueOptions{})
	store := s.store()
	heard := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); store.subscribe(ctx, func(string) { heard <- struct{}{} }) }()
	testbed.Eventually(t, "an entry is noticed", bound, func() bool {
		s.add("a/" + fmt.Sprint(time.Now().UnixNano()))
		select {
		case <-heard:
			return true
		default:
			return false
		}
	})
	cancel()
	select {
	case <-done: // even while a command waits for entries
	case <-time.After(streamBlock - time.Second):
		t.Error("hear does not end")
	}
}

// TestQueueHeldTogether: messages of one key are settled one by one. The key continues when all are
// settled, or when the lease ends: parked, or after its pause.
func TestQueueHeldTogether(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	const lease = 2 * time.Second // a busy machine renews late
	for name, c := range map[string]struct {
		outcome driver.Outcome
		after   time.Duration
	}{"Release": {driver.Release, 0}, "Retry": {driver.Retry, 2 * lease}, "Park": {driver.Park, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStreamScene(t, client, QueueOptions{})
			s.add("a/1", "a/2")
			one, two := s.join(s.Queue, lease), s.join(s.Queue, time.Minute)
			was := one.All(2)
			first := driver.Settlement{Received: was[0], Outcome: c.outcome, After: c.after}
			begun := time.Now()
			testbed.OK(t, one.Settle(t.Context(), []driver.Settlement{first})[0])
			two.Nothing(lease / 8) // while the rest is held
			one.Crash()
			if c.outcome == driver.Park {
				two.Nothing(2 * lease)
				testbed.OK(t, s.Resume(t.Context(), "q", "a", "a reason", "me"))
			}
			is := two.All(2)
			if ids := drivertest.ReceivedIDs(is); !slices.Equal(ids, []string{"a/1", "a/2"}) || time.Since(begun) < c.after {
				t.Errorf("received %v after %v", ids, time.Since(begun))
			}
			two.Record(driver.Ack, is...)
			s.empty(0)
		})
	}
}

// TestQueueAcknowledgesNoOther: an acknowledgement finishes no other message of its lease, also if
// it is sent twice, and no later one of its key.
func TestQueueAcknowledgesNoOther(t *testing.T) {
	t.Parallel()
	s := newStreamScene(t, dial(t, testbed.Redis(t).Addr()), QueueOptions{Window: -1})
	c := s.join(s.Queue, time.Minute)
	for _, twice := range []bool{false, true} {
		s.add("a/1", "a/2")
		all := c.All(2)
		if twice {
			c.Record(driver.Ack, all[0], all[0])
		} else {
			c.Record(driver.Release, all[1])
			c.Record(driver.Ack, all[0])
		}
		rest := c.Take(1)
		if rest[0].ID != "a/2" {
			t.Errorf("received %+v", rest[0])
		}
		s.add("a/3")
		_, _, err := s.store().Claim(t.Context(), "", time.Minute, driver.QueueLimit{}) // takes nothing, and indexes it
		testbed.OK(t, err)
		c.Record(driver.Ack, rest...)
		c.Record(driver.Ack, c.Take(1)...)
		s.empty(0)
	}
}

// TestQueueKeyChangesItsPriority: a key has the priority of its last message.
func TestQueueKeyChangesItsPriority(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	s := newStreamScene(t, client, QueueOptions{})
	add := func(id, key string, p driver.Priority) {
		testbed.OK(t, s.Add(t.Context(), "q", driver.QueueMessage{ID: id, Key: key, Priority: p}))
	}
	add("b/1", "b", driver.NormalPriority)
	add("a/1", "a", driver.LowPriority)
	add("a/2", "a", driver.HighPriority)
	c := s.join(s.Queue, time.Minute)
	for _, id := range []string{"a/1", "a/2", "b/1"} {
		m := c.Take(1)
		if m[0].ID != id {
			t.Errorf("%s instead of %s", m[0].ID, id)
		}
		c.Record(driver.Ack, m...)
	}
	s.empty(0)
}

// TestQueueRenewsItsOwn: only its holder renews a lease, also after its end until another consumer
// takes it.
func TestQueueRenewsItsOwn(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	s := newStreamScene(t, client, QueueOptions{})
	store := s.store()
	limit := driver.QueueLimit{Messages: 9, Bytes: 1}
	claim := func(lease time.Duration, limit driver.QueueLimit) []leasequeue.Group {
		t.Helper()
		some, _, err := store.Claim(t.Context(), "", lease, limit)
		testbed.OK(t, err)
		return some
	}
	renew := func(h leasequeue.Held) bool {
		t.Helper()
		kept, lost, err := store.Renew(t.Context(), []leasequeue.Held{h}, time.Minute)
		if err != nil || len(kept)+len(lost) != 1 {
			t.Fatal(kept, lost, err)
		}
		return len(kept) == 1
	}
	s.add("a/1", "a/2")
	one := claim(time.Millisecond, limit)[0]
	held := leasequeue.Held{ID: one.ID, Token: one.Token}
	testbed.Eventually(t, "the lease ends", bound, func() bool {
		claim(time.Minute, driver.QueueLimit{}) // takes nothing
		return len(lanesOf(t, client, store.keys[3])) == 1
	})
	if !renew(held) {
		t.Error("a lease that was not taken is not renewed")
	}
	if some := claim(time.Minute, limit); len(some) > 0 {
		t.Errorf("a renewed lease was granted to another consumer: %v", some)
	}
	free := leasequeue.Settled{Held: held, Finished: true}
	if lost, err := store.Settle(t.Context(), []leasequeue.Settled{free}); err != nil || len(lost) > 0 {
		t.Fatal(lost, err)
	}
	if renew(held) {
		t.Error("a lease that was given back is renewed")
	}
	two := claim(time.Minute, limit)[0]
	if renew(held) {
		t.Error("a lease of another consumer is renewed")
	}
	if !renew(leasequeue.Held{ID: two.ID, Token: two.Token}) {
		t.Error("a lease is not renewed")
	}
	if renew(leasequeue.Held{ID: 1000, Token: two.Token}) {
		t.Error("a lease of no lane is renewed")
	}
}

// TestQueueShows: Status and Stuck count correctly, and manual operations are recorded.
func TestQueueShows(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	s := newStreamScene(t, client, QueueOptions{})
	if all, err := s.Status(t.Context()); err != nil || len(all) > 0 {
		t.Fatal(all, err)
	}
	s.add("a/1", "a/2", "b/1", "c/1", "d/1", "e/1")
	c := s.join(s.Queue, time.Minute)
	for _, m := range c.All(6) {
		x := driver.Settlement{Received: m, Outcome: driver.Release, Reason: "reason of " + m.ID}
		switch m.ID {
		case "a/1":
			x.Outcome, x.After = driver.Retry, time.Hour
		case "b/1":
			x.Outcome = driver.Park
		case "c/1":
			x.Outcome = driver.Dead
		case "d/1":
			continue
		}
		testbed.OK(t, c.Settle(t.Context(), []driver.Settlement{x})[0])
	}
	s.add("f/1", "f/2")
	all, err := s.Status(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if got := all[0]; got.Queue != "q" || got.Messages != 7 || got.Dead != 1 || got.Leased != 1 || got.Parked != 1 || got.Oldest > time.Minute {
		t.Errorf("%+v", got)
	}
	stuck, err := s.Stuck(t.Context(), "q", 10)
	if err != nil || len(stuck) != 2 {
		t.Fatal(stuck, err)
	}
	if a := stuck[0]; a.ID != "a/1" || a.Key != "a" || a.Attempt != 1 || a.Parked || a.Wait < 50*time.Minute || a.Reason != "reason of a/1" {
		t.Errorf("%+v", a)
	}
	if b := stuck[1]; b.ID != "b/1" || b.Attempt != 0 || !b.Parked || b.Reason != "reason of b/1" {
		t.Errorf("%+v", b)
	}
	if err := s.Resume(t.Context(), "q", "b", " ", "me"); interlock.Kind(err) != interlock.Bug {
		t.Errorf("resumed without a reason: %v", err)
	}
	testbed.OK(t, s.Resume(t.Context(), "q", "b", "it is repaired", "me"))
	letters, err := s.DeadLetters(t.Context(), "q", 0, 10)
	if err != nil || len(letters) != 1 {
		t.Fatal(letters, err)
	}
	testbed.OK(t, s.Replay(t.Context(), "q", "again", "you", letters[0].Place))
	var done []map[string]string
	for _, e := range entries(t, client, strings.Replace(s.mustKeys()[1], ":lanes:", ":audit:", 1)) {
		done = append(done, e.FieldValues)
	}
	if len(done) != 2 || done[0]["action"] != "resume" || done[0]["key"] != "b" || done[0]["reason"] != "it is repaired" || done[0]["by"] != "me" ||
		done[1]["action"] != "replay" || done[1]["id"] != "c/1" || done[1]["key"] != "c" || done[1]["by"] != "you" {
		t.Errorf("recorded: %v", done)
	}
}

func (s *streamScene) mustKeys() []string {
	s.Helper()
	keys, err := s.keys("test", "q")
	testbed.OK(s, err)
	return keys
}

func (s *streamScene) store() *streamStore { return &streamStore{s.Queue, "q", s.mustKeys()} }
