package drivertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// QueueHarness gives [RunQueue] access to queues.
type QueueHarness struct {
	// Bubble runs one test; nil calls test itself. The memory driver passes synctest.Test.
	Bubble func(t *testing.T, test func(t *testing.T))
	// Partitioned reports that a claim is on a partition with many keys and continues when its
	// messages are settled. Such a queue has no delays, priorities and unique messages, and dead
	// letters do not return to their places. Each queue of the suite has one partition.
	Partitioned bool
	// Start prepares empty queues for one test.
	Start func(t *testing.T) QueueBackend
}

// QueueBackend is the queues of one test.
type QueueBackend interface {
	driver.Queue
	// Add appends messages to the named queue.
	Add(t *testing.T, name string, messages ...driver.QueueMessage) error
	// DeadLetters returns the ids of dead letters, in order. Replay returns them to their places; it
	// is not called if claims are on partitions.
	DeadLetters(t *testing.T, name string) []string
	Replay(t *testing.T, name string, ids ...string)
	// Resume resumes a parked key.
	Resume(t *testing.T, name, key string)
}

const (
	// queueLease is the lease of crashing consumers, and the unit of the suite's pauses.
	queueLease = time.Second
	// calmLease is the lease of all others, because a busy machine renews late.
	calmLease = 6 * time.Second
)

// RunQueue runs the conformance suite of driver.Queue.
func RunQueue(t *testing.T, h QueueHarness) {
	tests := map[string]func(*queueScene){
		"Crash": testQueueCrash, "Retry": testQueueRetry, "Dead": testQueueDead, "Park": testQueuePark, "Limits": testQueueLimits,
		"SlowHandler": testQueueSlow, "Close": testQueueClose, "BadInput": testQueueBadInput, "Waits": testQueueWaits, "Competition": testQueueCompetition,
	}
	if h.Partitioned {
		tests["Partition"], tests["CompletedBeyondOffset"] = testQueuePartition, testQueueBeyond
	} else {
		maps.Copy(tests, map[string]func(*queueScene){
			"OrderByKey": testQueueOrder, "Delay": testQueueDelay, "Priority": testQueuePriority, "Unique": testQueueUnique,
			"Starvation": testQueueStarvation, "ReplayKeepsPriorities": testQueueReplayKeepsPriorities, "TokensAfterEmpty": testQueueTokens, "NoKey": testQueueNoKey, "Names": testQueueNames,
		})
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, h.Bubble, func(t *testing.T) { test(&queueScene{T: t, QueueBackend: h.Start(t), partitioned: h.Partitioned}) })
		})
	}
}

type queueScene struct {
	*testing.T
	QueueBackend
	partitioned bool
}

func (s *queueScene) join(owner string) QueueMember {
	s.Helper()
	return s.joinFor(owner, calmLease)
}

func (s *queueScene) joinFor(owner string, lease time.Duration) QueueMember {
	s.Helper()
	return JoinQueue(s.T, s, "q", driver.QueueOptions{Owner: owner, Lease: lease})
}

func (s *queueScene) ok(err error) {
	s.Helper()
	testbed.OK(s, err)
}

// add adds messages with ids KEY/N. The key "-" means no key.
func (s *queueScene) add(ids ...string) {
	s.Helper()
	var all []driver.QueueMessage
	for _, id := range ids {
		key, _, _ := strings.Cut(id, "/")
		all = append(all, driver.QueueMessage{ID: id, Key: strings.Trim(key, "-"), Payload: []byte("of " + id), Headers: map[string]string{"id": id}})
	}
	s.ok(s.Add(s.T, "q", all...))
}

// receive receives as many messages as there are ids and checks which they are. For one
// id it receives one message.
func (s *queueScene) receive(c QueueMember, ids ...string) (all []*driver.Received) {
	s.Helper()
	if len(ids) == 1 {
		all = c.Take(1)
	} else {
		all = c.All(len(ids))
	}
	got := ReceivedIDs(all)
	want := slices.Clone(ids)
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		s.Fatalf("received %v, want %v", got, want)
	}
	return all
}

func settlement(m *driver.Received, o driver.Outcome) driver.Settlement { return Settlements(o, m)[0] }

func testQueueOrder(s *queueScene) {
	s.add("a/1", "b/1", "a/2", "a/3", "b/2")
	one, two := s.join("one"), s.join("two")
	first := s.receive(one, "a/1", "a/2", "a/3", "b/1", "b/2")
	for _, key := range []string{"a", "b"} {
		var of []*driver.Received
		for _, m := range first {
			if m.Key == key {
				of = append(of, m)
			}
		}
		if ids := ReceivedIDs(of); !slices.IsSorted(ids) || len(ids) == 0 {
			s.Fatalf("%v is out of order", ids)
		}
		for _, m := range of {
			if m.Claim != of[0].Claim || !m.Claim.Valid() || m.Attempt != 1 || m.Queue != "q" || string(m.Payload) != "of "+m.ID || m.Headers["id"] != m.ID || m.Added.IsZero() {
				s.Errorf("%+v", m)
			}
		}
	}
	s.add("a/4")
	two.Nothing(queueLease / 4)
	one.Record(driver.Ack, first...)
	for _, m := range first {
		if context.Cause(m.Claim.Context()) != interlock.ErrReleased {
			s.Errorf("the claim of %s ended by %v", m.ID, context.Cause(m.Claim.Context()))
		}
	}
	two.Record(driver.Ack, s.receive(two, "a/4")...)
	one.Nothing(queueLease / 4)
}

// testQueuePartition checks that a claim on a partition has its keys in order, continues when all
// are settled, and moves with a higher token.
func testQueuePartition(s *queueScene) {
	s.add("a/1", "b/1", "a/2", "-/1", "a/3", "b/2")
	one := s.join("one")
	first := s.receive(one, "a/1", "b/1", "a/2", "-/1", "a/3", "b/2")
	claim := first[0].Claim
	last := map[string]string{}
	for _, m := range first {
		if m.Claim != claim || !m.Claim.Valid() || m.Attempt != 1 || string(m.Payload) != "of "+m.ID || m.Headers["id"] != m.ID || m.Added.IsZero() || m.ID < last[m.Key] {
			s.Errorf("%+v behind %q", m, last[m.Key])
		}
		last[m.Key] = m.ID
	}
	two := s.join("two")
	two.Nothing(queueLease / 4)
	one.Record(driver.Ack, first...)
	if !claim.Valid() {
		s.Errorf("the claim ended by %v", context.Cause(claim.Context()))
	}
	s.add("a/4")
	again := s.receive(one, "a/4")
	if again[0].Claim != claim {
		s.Errorf("another claim: %v after %v", again[0].Claim.Token(), claim.Token())
	}
	one.Record(driver.Ack, again...)
	s.ok(one.Close(s.Context()))
	s.add("a/5")
	next := s.receive(two, "a/5")
	if next[0].Claim.Token() <= claim.Token() || next[0].Attempt != 1 {
		s.Errorf("token %v after %v, attempt %d", next[0].Claim.Token(), claim.Token(), next[0].Attempt)
	}
	two.Record(driver.Ack, next...)
}

// testQueueBeyond crashes a consumer whose first message is unsettled and whose others are
// handled. The next consumer gets only the first, as a later attempt, under a higher token.
func testQueueBeyond(s *queueScene) {
	ids := QueueIDs(50, 0, 1)
	s.add(ids...)
	one := s.joinFor("one", queueLease)
	was := s.receive(one, ids...)
	one.Record(driver.Ack, was[1:]...)
	one.Crash()
	if context.Cause(was[0].Claim.Context()) == nil {
		s.Error("the claim of the crashed consumer goes on")
	}
	two := s.join("two")
	again := s.receive(two, was[0].ID)
	if again[0].Attempt <= was[0].Attempt || again[0].Claim.Token() <= was[0].Claim.Token() { // more, if a busy machine lost the first lease
		s.Errorf("attempt %d after %d, token %v after %v", again[0].Attempt, was[0].Attempt, again[0].Claim.Token(), was[0].Claim.Token())
	}
	two.Record(driver.Ack, again...)
	two.Nothing(queueLease / 4)
}

func testQueueCrash(s *queueScene) {
	s.add("a/1", "a/2")
	one := s.joinFor("one", queueLease)
	was := s.receive(one, "a/1", "a/2")
	two := s.join("two")
	one.Crash()
	again := s.receive(two, "a/1", "a/2")
	if again[0].Claim.Token() <= was[0].Claim.Token() {
		s.Errorf("token %v after %v", again[0].Claim.Token(), was[0].Claim.Token())
	}
	if again[0].Attempt <= was[0].Attempt || again[1].Attempt != 1 {
		s.Errorf("attempts %d, %d after %d, %d", again[0].Attempt, again[1].Attempt, was[0].Attempt, was[1].Attempt)
	}
	if was[0].Claim.Valid() {
		s.Error("the claim of the crashed consumer is valid")
	}
	for _, err := range append(one.Settle(s.Context(), Settlements(driver.Ack, was...)), one.Settle(s.Context(), []driver.Settlement{settlement(was[0], driver.Ack), settlement(was[1], driver.Dead)})...) {
		if !errors.Is(err, interlock.ErrLost) || interlock.Kind(err) != interlock.Definite {
			s.Errorf("the zombie settled: %v", err)
		}
	}
	two.Record(driver.Release, again[0], again[1])
	two.Record(driver.Ack, s.receive(two, "a/1", "a/2")...)
	if letters := s.DeadLetters(s.T, "q"); len(letters) > 0 {
		s.Errorf("dead letters %v", letters)
	}
}

func testQueueRetry(s *queueScene) {
	s.add("a/1", "a/2", "b/1")
	c := s.join("one")
	all := s.receive(c, "a/1", "a/2", "b/1")
	begun := time.Now()
	for _, m := range all {
		x := settlement(m, driver.Release)
		if m.ID == "a/1" {
			x.Outcome, x.After = driver.Retry, queueLease/2
		}
		c.RecordAll(x)
	}
	c.Record(driver.Ack, s.receive(c, "b/1")...)
	again := s.receive(c, "a/1", "a/2")
	if took := time.Since(begun); took < queueLease/4 {
		s.Errorf("tried again after %v", took)
	}
	if again[0].ID != "a/1" || again[0].Attempt != 2 || again[1].Attempt != 1 {
		s.Errorf("%s has attempt %d, then %d", again[0].ID, again[0].Attempt, again[1].Attempt)
	}
	x := settlement(again[0], driver.Retry)
	x.Uncounted = true
	c.RecordAll(settlement(again[1], driver.Release), x)
	again = s.receive(c, "a/1", "a/2")
	if again[0].ID != "a/1" || again[0].Attempt != 2 {
		s.Errorf("%s has attempt %d after one that does not count", again[0].ID, again[0].Attempt)
	}
	c.Record(driver.Ack, again...)
}

func testQueueDead(s *queueScene) {
	s.add("a/1", "a/2", "a/3", "a/4")
	c := s.join("one")
	m := s.receive(c, "a/1", "a/2", "a/3", "a/4")
	c.RecordAll(settlement(m[0], driver.Dead), settlement(m[1], driver.Dead), settlement(m[2], driver.Ack), settlement(m[3], driver.Park))
	if letters := s.DeadLetters(s.T, "q"); !slices.Equal(letters, []string{"a/1", "a/2"}) {
		s.Fatalf("dead letters %v", letters)
	}
	s.Resume(s.T, "q", "a")
	if s.partitioned {
		c.Record(driver.Ack, s.receive(c, "a/4")...)
		return
	}
	s.Replay(s.T, "q", "a/2", "a/1")
	again := s.receive(c, "a/1", "a/2", "a/4")
	if ids := ReceivedIDs(again); !slices.IsSorted(ids) {
		s.Errorf("replayed as %v", ids)
	}
	c.Record(driver.Ack, again...)
	if letters := s.DeadLetters(s.T, "q"); len(letters) > 0 {
		s.Errorf("dead letters %v", letters)
	}
}

func testQueuePark(s *queueScene) {
	s.add("a/1", "a/2", "b/1")
	c := s.join("one")
	for _, m := range s.receive(c, "a/1", "a/2", "b/1") {
		c.RecordAll(settlement(m, map[string]driver.Outcome{"a/1": driver.Park, "a/2": driver.Release, "b/1": driver.Ack}[m.ID]))
	}
	s.add("a/3", "b/2")
	c.Record(driver.Ack, s.receive(c, "b/2")...)
	c.Nothing(queueLease / 4)
	s.Resume(s.T, "q", "a")
	again := s.receive(c, "a/1", "a/2", "a/3")
	if ids := ReceivedIDs(again); !slices.IsSorted(ids) || again[0].Attempt != 1 {
		s.Errorf("%v, attempt %d", ids, again[0].Attempt)
	}
	c.Record(driver.Ack, again...)
}

func testQueueDelay(s *queueScene) {
	c := s.join("one")
	begun := time.Now()
	s.ok(s.Add(s.T, "q", driver.QueueMessage{ID: "a/1", Key: "a", Delay: queueLease / 2}, driver.QueueMessage{ID: "x", Delay: queueLease / 2}))
	s.add("a/2", "b/1")
	c.Record(driver.Ack, s.receive(c, "b/1")...)
	got := s.receive(c, "a/1", "a/2", "x")
	if took := time.Since(begun); took < queueLease/2 {
		s.Errorf("delivered after %v", took)
	}
	c.Record(driver.Ack, got...)
}

func testQueuePriority(s *queueScene) {
	for i, p := range []driver.Priority{driver.LowPriority, driver.NormalPriority, driver.HighPriority} {
		s.ok(s.Add(s.T, "q", driver.QueueMessage{ID: fmt.Sprint(i), Key: fmt.Sprint(i), Priority: p}))
	}
	c := s.join("one")
	for _, id := range []string{"2", "1", "0"} {
		c.Record(driver.Ack, s.receive(c, id)...)
	}
}

// age adds d to the waiting time of all keys.
func (s *queueScene) age(d time.Duration) {
	s.Helper()
	aged, ok := s.QueueBackend.(interface {
		Age(t *testing.T, name string, d time.Duration)
	})
	if !ok {
		s.Fatal("a queue with priorities needs the method Age in this suite")
	}
	aged.Age(s.T, "q", d)
}

// testQueueReplayKeepsPriorities checks that a key with replayed messages has the priority of its last
// message, and a replayed message without a key its own.
func testQueueReplayKeepsPriorities(s *queueScene) {
	add := func(id, key string, p driver.Priority) {
		s.ok(s.Add(s.T, "q", driver.QueueMessage{ID: id, Key: key, Priority: p}))
	}
	c := s.join("one")
	for _, m := range []driver.QueueMessage{{ID: "a/1", Key: "a"}, {ID: "b/1", Key: "b"}, {ID: "b/2", Key: "b", Priority: driver.HighPriority}, {ID: "x", Priority: driver.HighPriority}} {
		add(m.ID, m.Key, m.Priority)
		c.Record(driver.Dead, s.receive(c, m.ID)...)
	}
	add("normal", "", driver.NormalPriority)
	s.age(30 * time.Second) // less than one step of priority is worth
	add("a/2", "a", driver.HighPriority)
	s.Replay(s.T, "q", "a/1", "b/1", "b/2", "x")
	var ids []string
	for range 6 {
		m := c.Take(1)
		ids = append(ids, ReceivedIDs(m)...)
		c.Record(driver.Ack, m...)
	}
	if ids[5] != "normal" || slices.Index(ids, "a/1") > slices.Index(ids, "a/2") || slices.Index(ids, "b/1") > slices.Index(ids, "b/2") {
		s.Errorf("received %v", ids)
	}
}

// testQueueStarvation checks that a key of low priority that has waited a minute longer for each
// step of priority is received first.
func testQueueStarvation(s *queueScene) {
	add := func(id string, p driver.Priority) {
		s.ok(s.Add(s.T, "q", driver.QueueMessage{ID: id, Priority: p}))
	}
	c := s.join("one")
	add("low", driver.LowPriority)
	s.age(2*time.Minute + time.Second)
	add("high", driver.HighPriority)
	c.Record(driver.Ack, s.receive(c, "low")...)
	add("low again", driver.LowPriority)
	s.age(time.Minute)
	add("high again", driver.HighPriority)
	for _, id := range []string{"high", "high again", "low again"} {
		c.Record(driver.Ack, s.receive(c, id)...)
	}
}

func testQueueUnique(s *queueScene) {
	report := func(id string) driver.QueueMessage { return driver.QueueMessage{ID: id, Unique: "report"} }
	s.ok(s.Add(s.T, "q", report("1"), report("2")))
	s.ok(s.Add(s.T, "q", report("3")))
	s.ok(s.Add(s.T, "other", report("4")))
	c := s.join("one")
	c.Record(driver.Ack, s.receive(c, "1")...)
	c.Nothing(queueLease / 4)
	s.ok(s.Add(s.T, "q", report("5")))
	c.Record(driver.Dead, s.receive(c, "5")...)
	s.ok(s.Add(s.T, "q", report("6"))) // a dead letter is finished,
	s.Replay(s.T, "q", "5")            // and is delivered again all the same
	c.Record(driver.Ack, s.receive(c, "5", "6")...)
}

func testQueueLimits(s *queueScene) {
	s.ok(s.Add(s.T, "q", driver.QueueMessage{ID: "1", Key: "a", Payload: make([]byte, 900)}, driver.QueueMessage{ID: "2", Key: "a", Payload: make([]byte, 900)},
		driver.QueueMessage{ID: "3", Key: "b", Payload: make([]byte, 900)}))
	c := s.join("one")
	for _, limit := range []driver.QueueLimit{{Messages: 1, Bytes: 1 << 20}, {Messages: 9, Bytes: 100}, {Messages: 9, Bytes: 1000}} {
		some, err := c.Receive(s.Context(), limit)
		s.ok(err)
		if len(some) != 1 {
			s.Errorf("%v: received %v", limit, ReceivedIDs(some))
		}
		c.Record(driver.Ack, some...)
	}
	c.Nothing(queueLease / 4)
}

func testQueueSlow(s *queueScene) {
	s.add("a/1")
	one := s.join("one")
	m := s.receive(one, "a/1")
	two := s.join("two")
	two.Nothing(calmLease * 3 / 2)
	if !m[0].Claim.Valid() {
		s.Error("the lease was not renewed")
	}
	one.Record(driver.Ack, m...)
}

func testQueueTokens(s *queueScene) {
	c := s.join("one")
	var last interlock.Token
	for range 3 {
		s.add("a/1")
		m := s.receive(c, "a/1")
		if token := m[0].Claim.Token(); token <= last {
			s.Errorf("token %v after %v", token, last)
		}
		last = m[0].Claim.Token()
		c.Record(driver.Ack, m...)
	}
}

func testQueueClose(s *queueScene) {
	s.add("a/1", "a/2")
	one := s.join("one")
	m := s.receive(one, "a/1", "a/2")
	two := s.join("two")
	one.Record(driver.Ack, m[0])
	s.ok(one.Close(s.Context()))
	if cause := context.Cause(m[0].Claim.Context()); cause != interlock.ErrReleased {
		s.Errorf("the claim ended by %v", cause)
	}
	if _, err := one.Receive(s.Context(), driver.QueueLimit{Messages: 1, Bytes: 1}); !errors.Is(err, interlock.ErrClosed) {
		s.Errorf("receive after close: %v", err)
	}
	again := s.receive(two, "a/2")
	if again[0].Attempt != 1 {
		s.Errorf("attempt %d", again[0].Attempt)
	}
	two.Record(driver.Ack, again...)
}

func testQueueNoKey(s *queueScene) {
	s.add("-/1", "-/2", "-/3")
	one, two := s.join("one"), s.join("two")
	first, err := one.Receive(s.Context(), driver.QueueLimit{Messages: 1, Bytes: 1 << 20})
	s.ok(err)
	rest := slices.DeleteFunc([]string{"-/1", "-/2", "-/3"}, func(id string) bool { return id == first[0].ID })
	two.Record(driver.Ack, s.receive(two, rest...)...)
	one.Record(driver.Retry, first[0])
	two.Record(driver.Ack, s.receive(two, first[0].ID)...)
}

func testQueueNames(s *queueScene) {
	for _, name := range []string{`it's "1"\, {NULL} ?`, "é%_*", "NULL"} {
		m := driver.QueueMessage{ID: name, Key: name, Unique: name, Headers: map[string]string{name: name}, Payload: []byte("a\x00\xff'\\")}
		s.ok(s.Add(s.T, name, m))
		c := JoinQueue(s.T, s, name, driver.QueueOptions{Owner: name, Lease: calmLease})
		got := s.receive(c, name)
		if got[0].Headers[name] != name || string(got[0].Payload) != string(m.Payload) || got[0].Key != name || got[0].Claim.Owner() != name {
			s.Errorf("%+v", got[0])
		}
		c.Record(driver.Dead, got[0])
		s.ok(c.Close(s.Context()))
	}
}

func testQueueBadInput(s *queueScene) {
	for _, c := range []struct {
		name string
		o    driver.QueueOptions
	}{{"", driver.QueueOptions{}}, {strings.Repeat("x", 256), driver.QueueOptions{}}, {"a\x00", driver.QueueOptions{}},
		{"q", driver.QueueOptions{Lease: -1}}, {"q", driver.QueueOptions{Owner: strings.Repeat("x", 256)}}, {"q", driver.QueueOptions{Lease: 1000 * time.Hour}}} {
		if _, err := s.Join(s.Context(), c.name, c.o); interlock.Kind(err) != interlock.Bug {
			s.Errorf("join %.9q with %+v: %v", c.name, c.o, err)
		}
	}
	if err := s.Add(s.T, "", driver.QueueMessage{ID: "1"}); err == nil {
		s.Error("added to a queue without a name")
	}
	c := s.join("one")
	for _, err := range c.Settle(s.Context(), []driver.Settlement{{Received: &driver.Received{}, Outcome: driver.Ack}}) {
		if interlock.Kind(err) != interlock.Bug {
			s.Errorf("settle of a message that was not received: %v", err)
		}
	}
}

func testQueueWaits(s *queueScene) {
	c := s.join("one")
	got := make(chan []*driver.Received, 1)
	go func() {
		some, _ := c.Receive(s.Context(), driver.QueueLimit{Messages: 1, Bytes: 1})
		got <- some
	}()
	s.add("a/1")
	c.Record(driver.Ack, testbed.Receive(s, got, "the messages")...)
}

// testQueueCompetition has consumers handle messages of few keys, and settle those of a key together.
func testQueueCompetition(s *queueScene) {
	const keys, each = 5, 20
	for n := range each {
		for k := range keys {
			s.add(fmt.Sprintf("%d/%03d", k, n))
		}
	}
	handled := make(chan *driver.Received, keys*each)
	ctx, cancel := context.WithCancel(s.Context())
	var consumers sync.WaitGroup
	defer consumers.Wait()
	defer cancel()
	for i := range 3 {
		c := s.join(fmt.Sprint(i))
		consumers.Go(func() {
			for {
				some, err := c.Receive(ctx, driver.QueueLimit{Messages: 7, Bytes: 1 << 20})
				if err != nil {
					return
				}
				for _, m := range some {
					handled <- m
				}
				var all []driver.Settlement
				for _, m := range some {
					if n := len(all) - 1; n >= 0 && all[n].Key == m.Key && all[n].Claim == m.Claim {
						all[n].Later = append(all[n].Later, m)
					} else {
						all = append(all, settlement(m, driver.Ack))
					}
				}
				if err := errors.Join(c.Settle(s.Context(), all)...); err != nil {
					s.Error(err)
				}
			}
		})
	}
	last := map[string]*driver.Received{}
	for range keys * each {
		m := testbed.Receive(s, handled, "a handled message")
		if was, ok := last[m.Key]; ok && (m.ID <= was.ID || m.Claim.Token() < was.Claim.Token()) {
			s.Errorf("%s under %v after %s under %v", m.ID, m.Claim.Token(), was.ID, was.Claim.Token())
		}
		last[m.Key] = m
	}
}
