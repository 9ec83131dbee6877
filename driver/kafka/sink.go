package kafka

import (
	"context"
	"fmt"
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
	if s.limit > maxRequest {
		options = append(options, kgo.BrokerMaxWriteBytes(1<<30))
	}
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
	// The client keeps the order of a lane, and if it gives up a record of a partition it gives up what
	// is behind it.
	answered := make(chan produced, len(messages)) // it may answer after the return
	sent := map[int]bool{}
	for _, lane := range driver.Lanes(messages) {
		for n, i := range lane {
			if answers[i] = s.check(messages[i]); answers[i] != nil {
				for _, behind := range lane[n+1:] {
					answers[behind] = driver.ErrNotSent
				}
				break // what is behind it is not sent
			}
			sent[i] = true
			s.client.Produce(ctx, s.record(messages[i]), func(_ *kgo.Record, err error) { answered <- produced{i, err} })
		}
	}
	for waits := true; waits && len(sent) > 0; {
		select {
		case p := <-answered:
			if delete(sent, p.i); p.err != nil {
				answers[p.i] = problem("publish", messages[p.i].ID, classify(p.err), p.err)
			}
		case <-ctx.Done():
			waits = len(answered) > 0
		}
	}
	for i := range sent {
		answers[i] = problem("publish", messages[i].ID, interlock.Uncertain, context.Cause(ctx))
	}
	s.reached.Store(ctx.Err() == nil)
	return answers
}

// produced is the client's answer to a record.
type produced struct {
	i   int // of its message
	err error
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
