package watermill_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	upstream "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/watermill"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const bound = 30 * time.Second

var silent = &queue.Options{MinPause: time.Millisecond, MaxPause: 5 * time.Millisecond, Hooks: &observe.Queue{Log: observe.Silent}}

var ok = testbed.OK

func open(t *testing.T) *databases.DB {
	db := databases.Open(t, testbed.Shared(t, testbed.Postgres), databases.Pgx)
	db.Do(t, queue.Table{}.Create)
	db.Do(t, outbox.Table{}.Create)
	return db
}

func msg(id, key string) *message.Message {
	m := message.NewMessage(id, []byte("of "+id))
	m.Metadata.Set("h", id)
	if key != "" {
		m.Metadata.Set(watermill.MetadataKey, key)
	}
	return m
}

// TestRouter: a router handles what committed transactions published, in order by key, over failures, and
// nothing of those that were rolled back.
func TestRouter(t *testing.T) {
	t.Parallel()
	db := open(t)
	const keys, each = 4, 10
	rolledBack := errors.New("the user's")
	for n := range each {
		for k := range keys {
			id := fmt.Sprintf("%d/%02d", k, n)
			for _, outcome := range []error{rolledBack, nil} {
				err := queue.Tx(t.Context(), db, nil, func(ctx context.Context, tx driver.SQL) error {
					return errors.Join(watermill.NewQueuePublisher(tx, queue.Table{}).Publish("orders", msg(id, fmt.Sprint("k", k))), outcome)
				})
				if !errors.Is(err, outcome) {
					t.Fatal(err)
				}
			}
		}
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: bound}, upstream.NopLogger{})
	ok(t, err)
	var mu sync.Mutex
	handled, left := map[string][]string{}, keys*each
	done := make(chan struct{})
	var calls atomic.Int32
	subscriber := watermill.NewSubscriber(queue.FromTable(db, queue.Table{}, nil), silent)
	router.AddConsumerHandler("ship", "orders", subscriber, func(m *message.Message) error {
		if calls.Add(1)%3 == 0 {
			return errors.New("it fails")
		}
		if string(m.Payload) != "of "+m.UUID || m.Metadata.Get("h") != m.UUID || m.Context().Err() != nil {
			t.Errorf("%+v", m)
		}
		mu.Lock()
		defer mu.Unlock()
		key := m.Metadata.Get(watermill.MetadataKey)
		handled[key] = append(handled[key], m.UUID)
		if left--; left == 0 {
			close(done)
		}
		return nil
	})
	ran := make(chan error, 1)
	go func() { ran <- router.Run(context.WithoutCancel(t.Context())) }()
	select {
	case <-done:
	case <-time.After(bound):
		t.Error("not all messages were handled")
	}
	testbed.Eventually(t, "all messages are settled", bound, func() bool {
		return databases.One[int64](t, db, `select count(*) from interlock_queue`) == 0
	})
	ok(t, router.Close())
	ok(t, <-ran)
	for k := range keys {
		if ids := handled[fmt.Sprint("k", k)]; len(ids) != each || !slices.IsSorted(ids) {
			t.Errorf("key %d: %v", k, ids)
		}
	}
}

// TestOutbox: what was published into an outbox is delivered by its relay, if it was committed.
func TestOutbox(t *testing.T) {
	t.Parallel()
	db := open(t)
	for _, commit := range []bool{false, true} {
		tx, err := db.Begin(t.Context())
		ok(t, err)
		ok(t, watermill.NewOutboxPublisher(tx, outbox.Table{}).Publish("orders", msg("1", "k"), msg("2", "k"), msg("3", "")))
		ok(t, watermill.NewOutboxPublisher(tx, outbox.Table{}).Publish("orders"))
		if commit {
			ok(t, tx.Commit(t.Context()))
		} else {
			ok(t, tx.Rollback(t.Context()))
		}
	}
	var sink memory.Sink
	relay, err := outbox.Start(t.Context(), db.URL, outbox.Table{}, &sink, nil)
	ok(t, err)
	defer func() { _ = relay.Close(context.WithoutCancel(t.Context())) }()
	testbed.Eventually(t, "all are delivered", bound, func() bool { return len(sink.Messages()) == 3 })
	for _, m := range sink.Messages() {
		if string(m.Payload) != "of "+m.ID || len(m.Headers) != 1 || m.Headers["h"] != m.ID || (m.Key == "k") != (m.ID != "3") {
			t.Errorf("%+v", m)
		}
	}
}

// TestClose: a subscription that ends waits for what it has handed over, and gives back the rest
// without counting an attempt.
func TestClose(t *testing.T) {
	t.Parallel()
	db := open(t)
	ok(t, queue.Tx(t.Context(), db, nil, func(ctx context.Context, tx driver.SQL) error {
		return watermill.NewQueuePublisher(tx, queue.Table{}).Publish("orders", msg("a", "a"), msg("b", "b"), msg("c", "c"))
	}))
	q := queue.FromTable(db, queue.Table{}, nil)
	for _, by := range []string{"close", "context"} {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		s := watermill.NewSubscriber(q, silent)
		all, err := s.Subscribe(ctx, "orders")
		ok(t, err)
		first := <-all
		if by == "close" {
			go func() { _ = s.Close() }()
		} else {
			end()
		}
		first.Ack()
		for m := range all { // one may be handed over while it ends
			m.Nack()
		}
		ok(t, s.Close())
		if _, err := s.Subscribe(t.Context(), "orders"); !errors.Is(err, interlock.ErrClosed) {
			t.Errorf("after its end: %v", err)
		}
		if err := first.Context().Err(); err == nil {
			t.Error("the context of a message that is acknowledged goes on")
		}
	}
	s := watermill.NewSubscriber(q, silent)
	all, err := s.Subscribe(t.Context(), "orders")
	ok(t, err)
	last := <-all
	last.Ack()
	ok(t, s.Close())
	if n := databases.One[int64](t, db, `select count(*) from interlock_queue`); n != 0 {
		t.Errorf("%d messages are left", n)
	}
	if _, err := watermill.NewSubscriber(q, nil).Subscribe(t.Context(), ""); interlock.Kind(err) != interlock.Bug {
		t.Errorf("without a topic: %v", err)
	}
}
