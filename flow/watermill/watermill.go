// Package watermill lets programs on Watermill publish into an outbox or a queue of Interlock, in
// their own transactions, and handle a queue of Interlock in a Watermill router. It adds no promises:
// a message is handled at least once, under the id that is its UUID.
//
//	err := queue.Tx(ctx, postgres.Pool(pool), nil, func(ctx context.Context, tx pgx.Tx) error {
//		m := message.NewMessageWithContext(ctx, "order-7-created", payload)
//		m.Metadata.Set(watermill.MetadataKey, "order/7")
//		return watermill.NewQueuePublisher(postgres.Tx(tx), queue.Table{}).Publish("orders", m)
//	})
//	…
//	subscriber := watermill.NewSubscriber(queue.FromTable(postgres.Pool(pool), queue.Table{}, nil), nil)
//	router.AddConsumerHandler("ship", "orders", subscriber, ship)
package watermill

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/queue"
)

// Names of metadata.
const (
	// MetadataKey has the key of a message: those of one key are in order. Without it a message is
	// in no order.
	MetadataKey = "Interlock-Key"
	// MetadataAttempt is set by a Subscriber: the number of the attempt, from 1.
	MetadataAttempt = "Interlock-Attempt"
)

// A Publisher adds messages in one transaction of the user's. It implements message.Publisher.
type Publisher struct {
	mu  sync.Mutex // a transaction has one user at a time
	add func(ctx context.Context, topic string, messages message.Messages) error
}

var _ message.Publisher = (*Publisher)(nil)

// NewOutboxPublisher makes a publisher for one transaction: its messages are delivered by the relay of
// the outbox if the transaction commits, and only then.
func NewOutboxPublisher(tx driver.SQL, t outbox.Table) *Publisher {
	return &Publisher{add: func(ctx context.Context, topic string, messages message.Messages) error {
		all := make([]outbox.Message, len(messages))
		for i, m := range messages {
			key, headers := split(m)
			all[i] = outbox.Message{ID: m.UUID, Topic: topic, Key: key, Headers: headers, Payload: m.Payload}
		}
		return t.Add(ctx, tx, all...)
	}}
}

// NewQueuePublisher makes a publisher for one transaction: its messages are in the queue of the
// topic's name if the transaction commits, and only then. Commit by queue.Tx with a notifier, or
// consumers find them within a second.
func NewQueuePublisher(tx driver.SQL, t queue.Table) *Publisher {
	return &Publisher{add: func(ctx context.Context, topic string, messages message.Messages) error {
		all := make([]queue.Message, len(messages))
		for i, m := range messages {
			key, headers := split(m)
			all[i] = queue.Message{ID: m.UUID, Key: key, Headers: headers, Payload: m.Payload}
		}
		return t.Add(ctx, tx, topic, all...)
	}}
}

func split(m *message.Message) (key string, headers map[string]string) {
	headers = maps.Clone(m.Metadata)
	key = headers[MetadataKey]
	delete(headers, MetadataKey)
	return key, headers
}

// Publish adds all messages or, with an error, none; after that the transaction must be rolled back.
// The context is that of the first message.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.add(messages[0].Context(), topic, messages)
}

// Close does nothing: the transaction is the user's.
func (p *Publisher) Close() error { return nil }

// closeBound is for how long messages that were handed over are waited for.
const closeBound = 30 * time.Second

// A Subscriber handles queues, whose names are the topics. It implements message.Subscriber. Messages
// of different keys are handed over side by side; the next one of a key comes once the one before is
// acknowledged. A message that is not (Nack) is handled as the failure of a queue's handler:
// queue.Options say what follows. The context of a message ends with its claim, so that work
// for a message that another process may have stops.
type Subscriber struct {
	q       driver.Queue
	options *queue.Options

	mu      sync.Mutex
	closed  bool
	closing chan struct{}
	running sync.WaitGroup
}

var _ message.Subscriber = (*Subscriber)(nil)

// NewSubscriber makes a subscriber of queues; nil options work. Several subscribers, also in
// other processes, share the messages of a queue.
func NewSubscriber(q driver.Queue, o *queue.Options) *Subscriber {
	return &Subscriber{q: q, options: o, closing: make(chan struct{})}
}

// Subscribe begins to handle a queue, until ctx ends or Close. Then it hands no more over, waits
// for what was handed over for half a minute at most, gives back the rest, and closes the channel.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, &interlock.Error{Op: "subscribe", Name: topic, Kind: interlock.Definite, Err: interlock.ErrClosed}
	}
	over, end := context.WithCancel(ctx)
	sub := &subscription{ctx: over, out: make(chan *message.Message)}
	consumer, err := queue.New(ctx, s.q, topic, sub.handle, s.options)
	if err != nil {
		end()
		return nil, err
	}
	s.running.Go(func() {
		defer end()
		defer close(sub.out) // no handler runs any more
		select {
		case <-ctx.Done():
		case <-s.closing:
		}
		end()
		sub.drain()
		now, interrupt := context.WithCancel(context.WithoutCancel(ctx))
		interrupt()
		_ = consumer.Close(now) // its error says that handlers were interrupted: those that had handed nothing over
	})
	return sub.out, nil
}

// Close ends all subscriptions.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// subscription is one Subscribe.
type subscription struct {
	ctx context.Context // ends when nothing more is to be handed over
	out chan *message.Message

	mu    sync.Mutex
	given int
	idle  chan struct{} // of drain: closed when none is given
}

// errNacked is a failure of the router's handler, which has logged it.
var errNacked = errors.New("the message was not acknowledged")

// handle hands a message over and waits for its acknowledgement.
func (s *subscription) handle(ctx context.Context, m queue.Received) error {
	mine, end := context.WithCancelCause(context.WithoutCancel(s.ctx)) // with the values of Subscribe's
	defer end(nil)
	defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
	out := message.NewMessageWithContext(mine, m.ID, m.Payload)
	maps.Copy(out.Metadata, m.Headers)
	if m.Key != "" {
		out.Metadata.Set(MetadataKey, m.Key)
	}
	out.Metadata.Set(MetadataAttempt, fmt.Sprint(m.Attempt))
	given := s.give()
	if given {
		select {
		case s.out <- out:
		case <-s.ctx.Done():
			s.settled()
			given = false
		case <-ctx.Done():
			s.settled()
			given = false
		}
	}
	if !given {
		<-ctx.Done() // the subscription ends, and gives the message back
		return context.Cause(ctx)
	}
	defer s.settled()
	select {
	case <-out.Acked():
		return nil
	case <-out.Nacked():
		return errNacked
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// give counts a message that is to be handed over, unless the subscription ends.
func (s *subscription) give() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle != nil {
		return false
	}
	s.given++
	return true
}

func (s *subscription) settled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.given--; s.given == 0 && s.idle != nil {
		close(s.idle)
	}
}

// drain lets nothing more be handed over, and waits for what was.
func (s *subscription) drain() {
	s.mu.Lock()
	s.idle = make(chan struct{})
	if s.given == 0 {
		close(s.idle)
	}
	s.mu.Unlock()
	bound := time.NewTimer(closeBound)
	defer bound.Stop()
	select {
	case <-s.idle:
	case <-bound.C:
	}
}
