// Package watermill connects Watermill: publishers for an outbox or a queue of Interlock, in the user's
// transaction, and a subscriber of a queue for a Watermill router. Delivery is at least once; the id of a
// message is its UUID.
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
	// MetadataKey is the key of a message; messages of one key are in order. Messages without it have
	// no order.
	MetadataKey = "Interlock-Key"
	// MetadataAttempt, set by a Subscriber, is the number of the attempt, from 1.
	MetadataAttempt = "Interlock-Attempt"
)

// A Publisher adds messages in one transaction of the user. It implements message.Publisher.
type Publisher struct {
	mu  sync.Mutex // a transaction has one user at a time
	add func(ctx context.Context, topic string, messages message.Messages) error
}

var _ message.Publisher = (*Publisher)(nil)

// NewOutboxPublisher returns a publisher for one transaction. The relay of the outbox delivers its messages
// if the transaction commits, and only then.
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

// NewQueuePublisher returns a publisher for one transaction. Its messages are added to the queue with the
// name of the topic if the transaction commits, and only then. Commit by queue.Tx with a notifier;
// without one consumers find them within a second.
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

// Publish adds all messages or none. After an error the transaction must be rolled back. It uses the
// context of the first message.
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

const closeBound = 30 * time.Second // wait for messages that the router has

// A Subscriber consumes queues, whose names are the topics. It implements message.Subscriber. Messages of
// different keys are delivered concurrently; the next message of a key follows the acknowledgement of the
// one before. A Nack is a failure of a queue's handler, for which queue.Options decide. The context of a
// message ends with its claim, because another process may then have the message.
type Subscriber struct {
	q       driver.Queue
	options *queue.Options

	mu      sync.Mutex
	closed  bool
	closing chan struct{}
	running sync.WaitGroup
}

var _ message.Subscriber = (*Subscriber)(nil)

// NewSubscriber returns a subscriber; nil options work. Several subscribers, also in other processes,
// share the messages of a queue.
func NewSubscriber(q driver.Queue, o *queue.Options) *Subscriber {
	return &Subscriber{q: q, options: o, closing: make(chan struct{})}
}

// Subscribe consumes a queue until ctx ends or Close. Then it delivers no more messages, waits up to 30 s
// for those that the router has, releases the rest, and closes the channel.
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
		_ = consumer.Close(now) // its error is about handlers that had delivered nothing
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
	ctx context.Context // ends when no more messages are delivered
	out chan *message.Message

	mu    sync.Mutex
	given int           // messages that the router has
	idle  chan struct{} // set by drain; closed when given is 0
}

// errNacked is a failure of the router's handler, which logs it.
var errNacked = errors.New("the message was not acknowledged")

// handle delivers a message to the router and waits for its acknowledgement.
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
	if !s.give() {
		<-ctx.Done() // the subscription ends and releases the message
		return context.Cause(ctx)
	}
	select {
	case s.out <- out:
		defer s.settled()
	case <-s.ctx.Done():
		s.settled()
		<-ctx.Done()
		return context.Cause(ctx)
	case <-ctx.Done():
		s.settled()
		return context.Cause(ctx)
	}
	select {
	case <-out.Acked():
		return nil
	case <-out.Nacked():
		return errNacked
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// give counts a message for the router; false if the subscription ends.
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

// drain stops the delivery, and waits for messages that the router has.
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
