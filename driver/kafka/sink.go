package kafka

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// DefaultMaxBytes is below the limit of a topic that sets none.
const DefaultMaxBytes = 1_000_000

// SinkOptions of a Sink; nil and the zero value work.
type SinkOptions struct {
	// MaxBytes bounds a record, and a batch of records; 0 means [DefaultMaxBytes]. It must not
	// exceed max.message.bytes of any topic.
	MaxBytes int
	// Client is added to the options of the client, for SASL, TLS and tuning. It does not change
	// that all replicas in sync acknowledge, and that the producer is idempotent.
	Client []kgo.Opt
}

// Sink publishes messages, each to the topic of its name, or all to one. It implements
// driver.Sink. A message counts as delivered when all replicas in sync have it; how many those
// are is min.insync.replicas of the topic. The client sends a batch again, without a duplicate,
// until the context of Publish ends.
type Sink struct {
	client *kgo.Client
	topic  string // of all messages, unless empty
	limit  int

	reached atomic.Bool // the last Publish had all answers, so the brokers take the credentials
}

var _ driver.Sink = (*Sink)(nil)

// OpenSink returns a Sink that has sent nothing yet. In kafka://host:port[,host:port…] each message goes
// to the topic of its name; kafka://host:port/topic sends all to that topic. Topics are not
// created.
func OpenSink(url string, o *SinkOptions) (*Sink, error) {
	const op = "open sink"
	brokers, topic, err := lanes.ParseURL("kafka", url, legal)
	if err != nil {
		return nil, problem(op, "", interlock.Bug, err)
	}
	s := &Sink{topic: topic, limit: DefaultMaxBytes}
	options := []kgo.Opt{kgo.SeedBrokers(brokers...), kgo.ProducerLinger(0)}
	if o != nil {
		options = append(options, o.Client...)
		if o.MaxBytes != 0 {
			s.limit = o.MaxBytes
		}
	}
	if s.limit < 1<<10 || s.limit > 1<<30 {
		return nil, problem(op, topic, interlock.Bug, fmt.Errorf("option MaxBytes %d: 1 KiB to 1 GiB are possible", s.limit))
	}
	options = append(options,
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchMaxBytes(int32(s.limit)),
		kgo.AllowIdempotentProduceCancellation(), // a record does not outlive its Publish
	)
	if s.client, err = kgo.NewClient(options...); err != nil {
		return nil, problem(op, topic, interlock.Bug, err)
	}
	return s, nil
}

// Close disconnects. The outcome of messages that are being published is unknown.
func (s *Sink) Close() { s.client.Close() }

// Publish sends messages; see driver.Sink.
func (s *Sink) Publish(ctx context.Context, messages []driver.Message) []error {
	answers := make([]error, len(messages))
	err := context.Cause(ctx)
	if err == nil {
		err = s.login(ctx)
	}
	if err != nil {
		for i, m := range messages {
			answers[i] = problem("publish", m.ID, interlock.Retryable, err)
		}
		return answers
	}
	c := &call{Sink: s, ctx: ctx, messages: messages, answers: answers, answered: make([]bool, len(messages)), done: make(chan struct{})}
	for _, lane := range driver.Lanes(messages) {
		c.send(lane)
	}
	c.finish()
	s.reached.Store(ctx.Err() == nil)
	return c.answers
}

// login returns the error of credentials that are refused. The client would try them until ctx ends,
// and return no more than that.
func (s *Sink) login(ctx context.Context) error {
	if s.reached.Load() {
		return nil
	}
	if err := s.client.Ping(ctx); isAny(err, loginErrors...) {
		return err
	}
	return nil
}

// call is one Publish.
type call struct {
	*Sink
	ctx      context.Context
	messages []driver.Message

	mu       sync.Mutex
	answers  []error
	answered []bool
	pending  int
	sent     bool          // all were given to the client
	over     bool          // Publish returns: nothing more is noted
	done     chan struct{} // closed when all are answered that were sent
}

// send produces the messages of a lane up to the first that is refused. The client keeps their
// order, and if it gives up one of a partition it gives up what is behind it.
func (c *call) send(lane []int) {
	for n, i := range lane {
		if err := c.check(c.messages[i]); err != nil {
			c.answer(i, err)
			for _, behind := range lane[n+1:] {
				c.answer(behind, driver.ErrNotSent)
			}
			return // what is behind it is not sent
		}
		c.mu.Lock()
		c.pending++
		c.mu.Unlock()
		c.client.Produce(c.ctx, c.record(c.messages[i]), func(_ *kgo.Record, err error) { c.produced(i, err) })
	}
}

// check refuses what no topic can have.
func (s *Sink) check(m driver.Message) error {
	topic := m.Topic
	if s.topic != "" {
		topic = s.topic
	}
	size := 64 + len(m.ID) + len(m.Topic) + len(m.Key) + len(m.Payload) + len(HeaderID) + len(HeaderTopic)
	for name, value := range m.Headers {
		if name == HeaderID || name == HeaderTopic {
			return problem("publish", m.ID, interlock.Definite, fmt.Errorf("the header %q is reserved", name))
		}
		size += 10 + len(name) + len(value)
	}
	switch {
	case m.ID == "" || m.Topic == "":
		return problem("publish", m.ID, interlock.Bug, interlock.ErrName)
	case !legal(topic):
		return problem("publish", m.ID, interlock.Definite, fmt.Errorf("%.300q cannot be the name of a topic", topic))
	case size+overhead > s.limit:
		return problem("publish", m.ID, interlock.Definite, fmt.Errorf("the message has %d bytes; MaxBytes is %d", size, s.limit))
	}
	return nil
}

// overhead of a batch with one record.
const overhead = 128

func (s *Sink) record(m driver.Message) *kgo.Record {
	r := &kgo.Record{Topic: m.Topic, Value: m.Payload, Headers: []kgo.RecordHeader{{Key: HeaderID, Value: []byte(m.ID)}}}
	if m.Key != "" {
		r.Key = []byte(m.Key)
	}
	if s.topic != "" {
		r.Topic = s.topic
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: HeaderTopic, Value: []byte(m.Topic)})
	}
	for name, value := range m.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	return r
}

// answer notes an outcome, before finish.
func (c *call) answer(i int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[i], c.answered[i] = err, true
}

// produced notes the outcome of a record, unless Publish has returned.
func (c *call) produced(i int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending--; !c.over {
		c.answered[i] = true
		if err != nil {
			c.answers[i] = problem("publish", c.messages[i].ID, classify(err), err)
		}
	}
	if c.pending == 0 && c.sent {
		close(c.done)
	}
}

// finish waits for all answers, or the end of the context.
func (c *call) finish() {
	c.mu.Lock()
	c.sent = true
	waits := c.pending > 0
	c.mu.Unlock()
	if waits {
		select {
		case <-c.done:
		case <-c.ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for i, ok := range c.answered {
		if !ok {
			c.answers[i] = problem("publish", c.messages[i].ID, interlock.Uncertain, context.Cause(c.ctx))
		}
	}
}
