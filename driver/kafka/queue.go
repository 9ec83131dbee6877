package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// Defaults of [QueueOptions].
const (
	DefaultWindow   = lanes.DefaultWindow
	DefaultBytes    = lanes.DefaultBytes
	DefaultDrain    = lanes.DefaultDrain
	DefaultMetadata = 4096
	DefaultSession  = 45 * time.Second // of driver.QueueOptions.Lease
)

// QueueOptions of a Queue; nil and the zero value work.
type QueueOptions struct {
	// Group is the consumer group; empty means "interlock." and the name of the queue.
	Group string
	// InstanceID makes this process a static member of the group: a restart within the session
	// timeout gets the same partitions, without a rebalance. It is unique in the group;
	// [InstanceID] makes one for a pod of a StatefulSet. Close then does not leave the group,
	// unless Leave is set.
	InstanceID string
	// Leave makes Close leave the group although there is an InstanceID, as for a scale-down.
	Leave bool
	// ServerSide lets the brokers assign partitions (KIP-848; Kafka 4.0, better 4.3). The
	// session timeout is then that of the brokers, and driver.QueueOptions.Lease has to be the
	// same; 0 means 45 seconds, which is theirs by default.
	ServerSide bool
	// DeadLetters is the topic of dead letters; empty means the name of the queue and ".dlq".
	// It is needed when a message becomes one. Its max.message.bytes must have room for the
	// messages of the queue and some headers.
	DeadLetters string
	// Drain bounds how long a partition that is given up waits for the handlers that have its
	// messages; 0 means [DefaultDrain]. Then their contexts end.
	Drain time.Duration
	// Window and Bytes bound what is held of the keys of one partition that are parked or wait to
	// be tried again: messages, and their payload; 0 means [DefaultWindow] and [DefaultBytes]. At
	// the bound the partition is not read on. Bytes also bounds what is read ahead and handled,
	// in all partitions together, and each fetch before it is decompressed; a larger message is
	// read alone.
	Window, Bytes int
	// Metadata is offset.metadata.max.bytes of the brokers; 0 means [DefaultMetadata].
	Metadata int
	// Client is added to the options of the clients, for SASL, TLS and tuning.
	Client []kgo.Opt
}

// Queue consumes topics, each as the queue of its name. It implements driver.Queue. Its
// partitions are the assignments: one consumer of the group handles a partition at a time, and
// the keys in it at the same time.
type Queue struct {
	options QueueOptions
	brokers []string
	client  *kgo.Client // for everything but the group

	consumers lanes.Consumers[*assignment]
}

var _ driver.Queue = (*Queue)(nil)

// OpenQueue returns a Queue for kafka://host:port[,host:port…]. It sends nothing yet, and creates no
// topics.
func OpenQueue(url string, o *QueueOptions) (*Queue, error) {
	const op = "open queue"
	brokers, topic, err := lanes.ParseURL("kafka", url, legal)
	if err == nil && topic != "" {
		err = errors.New("the URL has a topic; pass the topic as the name of the queue")
	}
	if err != nil {
		return nil, problem(op, "", interlock.Bug, err)
	}
	q := &Queue{brokers: brokers}
	if o != nil {
		q.options = *o
	}
	p := &q.options
	p.Metadata = cmp.Or(p.Metadata, DefaultMetadata)
	if err = lanes.CheckLimits(&p.Drain, &p.Window, &p.Bytes); err == nil && p.Metadata < 128 {
		err = fmt.Errorf("option Metadata of %d bytes: 128 is the minimum", p.Metadata)
	}
	if err == nil {
		q.client, err = kgo.NewClient(q.clientOptions(kgo.ProducerLinger(0), kgo.AllowIdempotentProduceCancellation())...)
	}
	if err != nil {
		return nil, problem(op, "", interlock.Bug, err)
	}
	return q, nil
}

func (q *Queue) clientOptions(more ...kgo.Opt) []kgo.Opt {
	// A partition that was paused is read again when the fetch that waits without it has ended.
	// One whose leader has moved is read again when the client may ask for metadata again.
	standard := []kgo.Opt{kgo.SeedBrokers(q.brokers...), kgo.FetchMaxWait(500 * time.Millisecond), kgo.MetadataMinAge(500 * time.Millisecond),
		kgo.FetchMaxBytes(int32(min(q.options.Bytes, 50<<20))), // the client's default is 50 MiB
		kgo.ProducerBatchMaxBytes(maxRequest)}
	return slices.Concat(standard, q.options.Client, more)
}

// maxRequest is the client's default bound of a request, and socket.request.max.bytes of the brokers. It bounds a dead
// letter.
const maxRequest = 100 << 20

// Close disconnects. Close the consumers first.
func (q *Queue) Close() { q.client.Close() }

// Join begins to consume a topic; see [driver.Queue]. A topic that does not exist, and
// credentials that the brokers refuse, are Definite errors. o.Lease is the session timeout.
func (q *Queue) Join(ctx context.Context, name string, o driver.QueueOptions) (driver.QueueConsumer, error) {
	const op = "join queue"
	o.Lease = cmp.Or(o.Lease, DefaultSession)
	if err := lanes.CheckJoin(name, legal(name), o); err != nil {
		return nil, problem(op, name, interlock.Bug, err)
	}
	if err := q.check(ctx, name); err != nil {
		return nil, err
	}
	c, err := q.start(name, o)
	if err != nil {
		return nil, err // not a typed nil
	}
	q.consumers.Add(c.Consumer)
	return c, nil
}

// Resume ends the parking of a key, if a consumer of this Queue has it; otherwise it returns a
// Definite error. Only the consumer of the partition knows its parked keys: the next consumer tries
// the message again.
func (q *Queue) Resume(name, key string) error {
	if q.consumers.Resume(name, key) {
		return nil
	}
	return problem("resume key", key, interlock.Definite, errors.New("the key is not parked in this process"))
}

// check requests the metadata of a topic, so that Join reports errors that do not pass.
func (q *Queue) check(ctx context.Context, name string) error {
	r := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &name
	r.Topics = append(r.Topics, topic)
	r.AllowAutoTopicCreation = false
	answer, err := r.RequestWith(ctx, q.client)
	if err == nil {
		err = kerr.ErrorForCode(answer.Topics[0].ErrorCode)
	}
	if isAny(err, kerr.UnknownTopicOrPartition, kerr.InvalidTopicException, kerr.TopicAuthorizationFailed) || isAny(err, loginErrors...) {
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			err = fmt.Errorf("create the topic first: %w", err)
		}
		return problem("join queue", name, interlock.Definite, err)
	}
	if err != nil && !kerr.IsRetriable(err) {
		return problem("join queue", name, interlock.Retryable, err)
	}
	return nil
}
