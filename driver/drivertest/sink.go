package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// KeptSink is a driver.Sink whose system can be read.
type KeptSink interface {
	driver.Sink
	// Kept returns the messages of a topic in the order in which the system accepted
	// them.
	Kept(ctx context.Context, topic string) ([]driver.Message, error)
}

// SinkHarness gives [RunSink] access to one driver.Sink and its system.
type SinkHarness = StoreHarness[KeptSink]

// SinkBackend is one running system that receives a sink's messages.
type SinkBackend = StoreBackend[KeptSink]

// RunSink runs the conformance suite of driver.Sink.
func RunSink(t *testing.T, h SinkHarness) {
	runStore(t, h, func(s *storeScene[KeptSink]) *sinkScene { return &sinkScene{s} }, []suiteTest[*sinkScene]{
		{"SinkStoresMessages", 0, testSinkStoresMessages},
		{"SinkAnswersInOrder", 0, testSinkAnswersInOrder},
		{"SinkKeepsOrderByKey", 0, testSinkKeepsOrderByKey},
		{"SinkHoldsBackAfterAFailure", 0, testSinkHoldsBackAfterAFailure},
		{"SinkNamesAreData", 0, testSinkNamesAreData},
		{"SinkIsSafeForConcurrentUse", 0, testSinkIsSafeForConcurrentUse},
		{"SinkContextAlreadyEnded", 0, testSinkContextAlreadyEnded},
		{"SinkReturnsWhenTheContextEnds", Servers | onPaths, testSinkReturnsWhenTheContextEnds},
		{"SinkRetriesNothing", Servers | LostReplies | onPaths, testSinkRetriesNothing},
		{"SinkOverARestart", Servers, testSinkOverARestart},
	})
}

// sinkScene is one test with its system and a first opening of it.
type sinkScene struct{ *storeScene[KeptSink] }

// event returns a message that has only names.
func event(topic, key, id string) driver.Message {
	return driver.Message{ID: id, Topic: topic, Key: key}
}

// publish publishes messages and requires an answer to each.
func (s *sinkScene) publish(ctx context.Context, messages ...driver.Message) []error {
	s.Helper()
	answers := s.store.Publish(ctx, messages)
	if len(answers) != len(messages) {
		s.Fatalf("%d answers to %d messages", len(answers), len(messages))
	}
	return answers
}

func (s *sinkScene) mustTake(messages ...driver.Message) {
	s.Helper()
	for i, err := range s.publish(s.Context(), messages...) {
		if err != nil {
			s.Fatalf("%q to %q: %v", messages[i].ID, messages[i].Topic, err)
		}
	}
}

func (s *sinkScene) kept(topic string) []driver.Message {
	s.Helper()
	all, err := s.beside().Kept(s.Context(), topic)
	if err != nil {
		s.Fatalf("read topic %.200q: %v", topic, err)
	}
	return all
}

// ids returns the ids of a topic's messages with a key.
func (s *sinkScene) ids(topic, key string) string {
	s.Helper()
	var ids []string
	for _, m := range s.kept(topic) {
		if m.Key == key {
			ids = append(ids, m.ID)
		}
	}
	return strings.Join(ids, " ")
}

// mustKeep requires the ids of a topic's messages with a key, in order.
func (s *sinkScene) mustKeep(topic, key string, ids ...string) {
	s.Helper()
	if got, want := s.ids(topic, key), strings.Join(ids, " "); got != want {
		s.Fatalf("topic %q has %.500q of key %q, want %.500q", topic, got, key, want)
	}
}

func sameMessage(a, b driver.Message) bool {
	return a.ID == b.ID && a.Topic == b.Topic && a.Key == b.Key && maps.Equal(a.Headers, b.Headers) && bytes.Equal(a.Payload, b.Payload)
}

// testSinkStoresMessages checks that an acknowledged message is stored unchanged.
func testSinkStoresMessages(s *sinkScene) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	messages := []driver.Message{
		{ID: "1", Topic: "t", Key: "k", Headers: map[string]string{"Content-Type": `"text"; x='y'`, "Empty": ""}, Payload: every},
		{ID: "2", Topic: "t", Key: "k"},
		{ID: "3", Topic: "t", Payload: bytes.Repeat([]byte("long "), 100_000)},
	}
	for _, m := range messages {
		s.mustTake(m)
	}
	kept := s.kept("t")
	if len(kept) != len(messages) {
		s.Fatalf("%d messages are kept of %d", len(kept), len(messages))
	}
	for i, m := range messages {
		if !sameMessage(kept[i], m) {
			s.Errorf("kept %.300q, want %.300q", fmt.Sprint(kept[i]), fmt.Sprint(m))
		}
	}
	if left := s.publish(s.Context()); len(left) != 0 {
		s.Errorf("%v for no messages", left)
	}
}

// impossible returns a message that every sink rejects, because it has no id.
func impossible(topic, key string) driver.Message { return event(topic, key, "") }

// mustRefuse requires an answer that the message will never be accepted.
func (s *sinkScene) mustRefuse(err error) {
	s.Helper()
	if kind := interlock.Kind(err); err == nil || kind != interlock.Definite && kind != interlock.Bug {
		s.Errorf("an impossible message: %v (%v)", err, kind)
	}
}

func testSinkAnswersInOrder(s *sinkScene) {
	var messages []driver.Message
	for i := range 100 {
		m := event(fmt.Sprint("t", i%3), "", fmt.Sprint(i))
		if i%7 == 0 {
			m = impossible(m.Topic, "")
		}
		messages = append(messages, m)
	}
	for i, err := range s.publish(s.Context(), messages...) {
		switch {
		case i%7 == 0:
			s.mustRefuse(err)
		case err != nil:
			s.Errorf("message %d: %v", i, err)
		}
	}
}

// testSinkKeepsOrderByKey publishes more messages than one request of any sink contains.
func testSinkKeepsOrderByKey(s *sinkScene) {
	var messages []driver.Message
	want := map[[2]string][]string{}
	for i := range 1000 {
		m := event(fmt.Sprint("t", i%3), fmt.Sprint("k", i%5), fmt.Sprint(i))
		m.Payload = bytes.Repeat([]byte("x"), i%100*50)
		messages = append(messages, m)
		want[[2]string{m.Topic, m.Key}] = append(want[[2]string{m.Topic, m.Key}], m.ID)
	}
	s.mustTake(messages...)
	for lane, ids := range want {
		s.mustKeep(lane[0], lane[1], ids...)
	}
}

func testSinkHoldsBackAfterAFailure(s *sinkScene) {
	answers := s.publish(s.Context(), event("t", "k", "0"), impossible("t", "k"), event("t", "k", "2"),
		event("t", "other", "3"), event("other", "k", "4"), impossible("t", ""), event("t", "", "6"), event("t", "k", "7"))
	for i, err := range answers {
		switch i {
		case 1, 5:
			s.mustRefuse(err)
		case 2, 7:
			s.mustFail(err, interlock.Retryable, driver.ErrNotSent)
		default:
			if err != nil {
				s.Errorf("message %d: %v", i+1, err)
			}
		}
	}
	s.mustKeep("t", "k", "0")
	s.mustKeep("t", "other", "3")
	s.mustKeep("other", "k", "4")
	s.mustKeep("t", "", "6")
	s.mustTake(event("t", "k", "2"), event("t", "k", "7"))
	s.mustKeep("t", "k", "0", "2", "7")
}

// testSinkNamesAreData checks that each topic and key is separate, and that a failure of
// one delays no other. A sink may reject a topic permanently.
func testSinkNamesAreData(s *sinkScene) {
	taken := 0
	for i, name := range append([]string{"1:a/", "a/1:b", "b/"}, oddNames...) {
		if name == "" || len(name) > 255 {
			continue
		}
		answers := s.publish(s.Context(), impossible(name, "b/c"), event(name, "c", "own"), event("plain", name, fmt.Sprint(i)))
		s.mustRefuse(answers[0])
		if answers[2] != nil {
			s.Errorf("key %q: %v", name, answers[2])
		}
		s.mustKeep("plain", name, fmt.Sprint(i))
		if answers[1] != nil {
			s.mustRefuse(answers[1])
			continue
		}
		taken++
		s.mustKeep(name, "c", "own")
	}
	if taken < 10 {
		s.Errorf("only %d topics are taken", taken)
	}
}

func testSinkIsSafeForConcurrentUse(s *sinkScene) {
	const callers, calls, each = 8, 20, 5
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for n := range calls {
				var messages []driver.Message
				for i := range each {
					messages = append(messages, event("t", fmt.Sprint(c), fmt.Sprintf("%d/%d", c, n*each+i)))
				}
				for _, err := range s.store.Publish(s.Context(), messages) {
					if err != nil {
						s.Errorf("caller %d: %v", c, err)
					}
				}
			}
		})
	}
	all.Wait()
	for c := range callers {
		var want []string
		for i := range calls * each {
			want = append(want, fmt.Sprintf("%d/%d", c, i))
		}
		s.mustKeep("t", fmt.Sprint(c), want...)
	}
}

// mustTellOfTheEnd requires that each answer reports the end of the context and does not
// reject the message.
func (s *sinkScene) mustTellOfTheEnd(answers []error, why error) {
	s.Helper()
	for i, err := range answers {
		if kind := interlock.Kind(err); !errors.Is(err, why) && !errors.Is(err, driver.ErrNotSent) || refusedOf(err) {
			s.Errorf("message %d: %v (%v), want that of the context (%v)", i+1, err, kind, why)
		}
	}
}

// refusedOf reports whether an error permanently rejects its own message.
func refusedOf(err error) bool {
	var of *interlock.Error
	return errors.As(err, &of) && (of.Kind == interlock.Definite || of.Kind == interlock.Bug) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

func testSinkContextAlreadyEnded(s *sinkScene) {
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	s.mustTellOfTheEnd(s.publish(ctx, event("t", "k", "1"), event("t", "", "2")), context.Canceled)
	if n := len(s.kept("t")); n != 0 {
		s.Errorf("%d messages are kept", n)
	}
	s.mustTake(event("t", "k", "1"))
}

func testSinkReturnsWhenTheContextEnds(s *sinkScene) {
	s.mustTake(event("t", "k", "0")) // opens the connections
	s.faults.Cut()
	ctx, cancel := context.WithTimeout(s.Context(), 300*time.Millisecond)
	defer cancel()
	answered := make(chan []error, 1)
	go func() { answered <- s.store.Publish(ctx, []driver.Message{event("t", "k", "1"), event("t", "", "2")}) }()
	for i, err := range testbed.Receive(s, answered, "the answers after the end of the context") {
		// The cut may end a request before the context does.
		if kind := interlock.Kind(err); err == nil || kind != interlock.Retryable && kind != interlock.Uncertain && !errors.Is(err, context.DeadlineExceeded) {
			s.Errorf("message %d: %v (%v)", i+1, err, kind)
		}
	}
}

// testSinkRetriesNothing checks that an unacknowledged message arrives at most once; if the
// caller publishes it again, it arrives twice.
func testSinkRetriesNothing(s *sinkScene) {
	s.mustTake(event("t", "k", "0"))
	s.faults.(ReplyDropper).DropReplies()
	ctx, cancel := context.WithTimeout(s.Context(), time.Second)
	defer cancel()
	for _, err := range s.publish(ctx, event("t", "k", "1"), event("t", "k", "2")) {
		if interlock.Kind(err) != interlock.Uncertain && !errors.Is(err, driver.ErrNotSent) {
			s.Errorf("without an answer: %v (%v)", err, interlock.Kind(err))
		}
	}
	s.faults.Heal()
	if got := s.ids("t", "k"); got != "0 1 2" && got != "0 1" {
		s.Fatalf("kept %q of 0, and of 1 and 2 without an answer", got)
	}
	s.persistPublish(event("t", "k", "9"))
	if got := s.ids("t", "k"); strings.Count(got, "1") != 1 || strings.Count(got, "2") > 1 {
		s.Errorf("kept %q: something was sent again", got)
	}
}

// persistPublish publishes a message until it is accepted.
func (s *sinkScene) persistPublish(m driver.Message) {
	s.Helper()
	s.persist("publish "+m.ID, func(ctx context.Context) error { return s.publish(ctx, m)[0] })
}

// testSinkOverARestart checks that an unreachable system does not reject messages
// permanently.
func testSinkOverARestart(s *sinkScene) {
	s.mustTake(event("t", "k", "0"))
	s.faults.Kill()
	ctx, cancel := context.WithTimeout(s.Context(), time.Second)
	defer cancel()
	for i, err := range s.publish(ctx, event("t", "k", "1"), event("t", "k", "2")) {
		if err == nil || refusedOf(err) {
			s.Errorf("message %d to a system that is down: %v (%v)", i+1, err, interlock.Kind(err))
		}
	}
	s.faults.Restart()
	s.persistPublish(event("t", "k", "3"))
	if got := s.ids("t", "k"); !strings.HasSuffix(got, "3") || strings.Contains(got, "1") || strings.Contains(got, "2") {
		s.Errorf("kept %q", got)
	}
}

// PublishAll publishes messages until the sink has accepted all, as a relay does: it repeats those
// without an answer and those held back. It fails after two minutes, and immediately if the sink
// rejects a message permanently.
func PublishAll(ctx context.Context, sink driver.Sink, left []driver.Message) error {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		try, cancel := context.WithTimeout(ctx, time.Second)
		answers := sink.Publish(try, left)
		cancel()
		var again []driver.Message
		for i, err := range answers {
			if err != nil && (refusedOf(err) || time.Now().After(end)) {
				return err
			}
			if err != nil {
				again = append(again, left[i])
			}
		}
		if left = again; len(left) == 0 {
			return nil
		}
	}
}

// SinkOrder publishes messages, as a relay does, to a system that fails meanwhile.
type SinkOrder struct {
	Sink               driver.Sink
	Topic              string
	Keys, Rounds, Each int // in each round Each messages of each key
	// Fail breaks and repairs the system. reach waits until a round has begun.
	Fail func(reach func(round int))
	Read func(ctx context.Context) ([]driver.Message, error)
	// Repeats allows that a message is stored several times.
	Repeats bool
}

// Check requires that no message is lost, and that those of a key are stored in order.
func (o SinkOrder) Check(t *testing.T) {
	t.Helper()
	var round atomic.Int32
	published := make(chan error, 1)
	go func() {
		var err error
		for n := 0; n < o.Rounds && err == nil; n++ {
			round.Store(int32(n))
			var some []driver.Message
			for i := range o.Each * o.Keys {
				some = append(some, driver.Message{ID: fmt.Sprintf("%d/%04d", i%o.Keys, n*o.Each+i/o.Keys), Topic: o.Topic, Key: fmt.Sprint(i % o.Keys)})
			}
			err = PublishAll(t.Context(), o.Sink, some)
		}
		published <- err
	}()
	o.Fail(func(n int) {
		testbed.Eventually(t, fmt.Sprint("round ", n), time.Minute, func() bool { return int(round.Load()) >= n })
	})
	t.Logf("repaired in round %d of %d", round.Load(), o.Rounds)
	testbed.OK(t, <-published)
	all, err := o.Read(t.Context())
	testbed.OK(t, err)
	stored := map[string][]string{}
	for _, m := range all {
		if !o.Repeats || !slices.Contains(stored[m.Key], m.ID) {
			stored[m.Key] = append(stored[m.Key], m.ID)
		}
	}
	for k := range o.Keys {
		if ids := stored[fmt.Sprint(k)]; len(ids) != o.Rounds*o.Each || !slices.IsSorted(ids) || len(slices.Compact(ids)) != o.Rounds*o.Each {
			t.Errorf("key %d: %d of %d messages, %v", k, len(ids), o.Rounds*o.Each, ids)
		}
	}
}
