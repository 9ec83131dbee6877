package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// Defaults of [QueueOptions].
const (
	DefaultWindow = lanes.DefaultWindow
	DefaultBytes  = lanes.DefaultBytes
	DefaultDrain  = lanes.DefaultDrain
	DefaultLease  = 30 * time.Second // of driver.QueueOptions.Lease
	DefaultBucket = "interlock-queues"
	DefaultGroup  = "interlock"
)

// QueueOptions of a Queue; nil and the zero value work.
type QueueOptions struct {
	// Group names the consumers that share the messages; every group receives all messages. It
	// has letters, digits, "-" and "_"; empty means [DefaultGroup].
	Group string
	// Partitions is the number of partitions, as in [SinkOptions]; 0 means 1. The first
	// consumer of a queue fixes the number; Join refuses another one.
	Partitions int
	// Bucket is the key-value bucket that keeps members, owners and positions; empty means
	// [DefaultBucket]. It is created, with the replicas of the stream, unless it exists.
	Bucket string
	// DeadLetters is the subject of dead letters; empty means "dlq." and the subject of the queue.
	// A stream must have the subject before the first dead letter.
	DeadLetters string
	// Drain bounds how long a partition that is given up waits for its running handlers; 0
	// means [DefaultDrain]. Then their contexts end.
	Drain time.Duration
	// Window and Bytes bound the messages, and their payload, of one partition whose keys are
	// parked or wait for a retry; 0 means [DefaultWindow] and [DefaultBytes]. At the bound,
	// reading of the partition pauses. Bytes also bounds the messages read ahead and handled, in
	// all partitions together.
	Window, Bytes int
	// Client is added to the options of the client, for credentials, TLS and tuning. The client
	// always reconnects without limit and buffers nothing while disconnected.
	Client []nats.Option
}

// Queue consumes the subjects of streams, each as the queue of its name. It implements
// driver.Queue. One consumer of the group handles a partition at a time, and the keys in it
// concurrently.
type Queue struct {
	options QueueOptions
	prefix  string
	client  *nats.Conn
	js      jetstream.JetStream

	consumers lanes.Consumers[*assignment]
}

var _ driver.Queue = (*Queue)(nil)

// OpenQueue connects queues. In nats://host:port[,host:port…] the subject of a queue is its name; in
// nats://host:port/prefix it is "prefix." and its name. Streams are not created. An unreachable
// server is no error: OpenQueue waits for at most two seconds, and the client continues to connect.
func OpenQueue(url string, o *QueueOptions) (*Queue, error) {
	const op = "open queue"
	servers, prefix, err := parse(url)
	if err != nil {
		return nil, problem(op, "", interlock.Bug, err)
	}
	q := &Queue{prefix: prefix}
	if o != nil {
		q.options = *o
	}
	p := &q.options
	p.Group, p.Bucket, p.Partitions = cmp.Or(p.Group, DefaultGroup), cmp.Or(p.Bucket, DefaultBucket), cmp.Or(p.Partitions, 1)
	err = lanes.CheckLimits(&p.Drain, &p.Window, &p.Bytes)
	switch {
	case err != nil:
	case p.Partitions < 1 || p.Partitions > maxPartitions:
		err = fmt.Errorf("%d partitions; 1 to %d are allowed", p.Partitions, maxPartitions)
	case !lanes.IsName(p.Group) || strings.Contains(p.Group, ".") || !lanes.IsName(p.Bucket) || strings.Contains(p.Bucket, "."):
		err = fmt.Errorf("the group %.300q or the bucket %.300q is invalid: use letters, digits, - and _", p.Group, p.Bucket)
	case prefix != "" && !lanes.IsName(prefix):
		err = fmt.Errorf("the prefix %.300q is invalid for queues, whose keys in the bucket have it: use letters, digits, ., - and _", prefix)
	case p.DeadLetters != "" && !legal(p.DeadLetters):
		err = fmt.Errorf("%.300q cannot be the subject of dead letters", p.DeadLetters)
	}
	if err == nil {
		q.client, q.js, err = connect(servers, p.Client)
	}
	if err != nil {
		return nil, problem(op, "", interlock.Bug, err)
	}
	return q, nil
}

// Close disconnects. Close the consumers first.
func (q *Queue) Close() { q.client.Close() }

// Join begins to consume a subject; see [driver.Queue]. Definite errors: no stream has the
// subject, the stream does not keep delivered messages, or the number of partitions differs. An
// unreachable server is Retryable. A lease is 100 ms to an hour.
func (q *Queue) Join(ctx context.Context, name string, o driver.QueueOptions) (driver.QueueConsumer, error) {
	const op = "join queue"
	o.Lease = cmp.Or(o.Lease, DefaultLease)
	if err := lanes.CheckJoin(name, lanes.IsName(name) && len(name) <= 255 && legal(q.prefix+name), o); err != nil {
		return nil, problem(op, name, interlock.Bug, err)
	}
	c := newConsumer(q, name, o)
	if _, _, err := c.find(ctx); err != nil {
		return nil, problem(op, name, interlock.Kind(err), explain(q.client, err))
	}
	q.consumers.Add(c.Consumer)
	c.Loop.Go(c.run)
	return c, nil
}

// refused is a Definite error.
type refused struct{ error }

// ErrorKind returns [interlock.Definite].
func (refused) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// find looks up the stream and the bucket of a queue, and compares the number of its partitions.
func (c *consumer) find(ctx context.Context) (jetstream.Stream, jetstream.KeyValue, error) {
	q := c.queue
	stream, err := q.stream(ctx, c.base)
	if err != nil {
		return nil, nil, err
	}
	config := stream.CachedInfo().Config
	if config.Retention != jetstream.LimitsPolicy {
		return nil, nil, refused{fmt.Errorf("the stream %s has retention %v: a queue needs the limits policy, since it keeps its own position", config.Name, config.Retention)}
	}
	bucket, err := q.js.KeyValue(ctx, q.options.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		bucket, err = q.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: q.options.Bucket, Replicas: config.Replicas, Description: "positions of interlock queues"})
		if errors.Is(err, jetstream.ErrBucketExists) {
			bucket, err = q.js.KeyValue(ctx, q.options.Bucket)
		}
	}
	if err != nil {
		return nil, nil, retryable(err)
	}
	want := strconv.Itoa(q.options.Partitions)
	if _, err = bucket.Create(ctx, c.key+".partitions", []byte(want)); errors.Is(err, jetstream.ErrKeyExists) {
		var has jetstream.KeyValueEntry
		if has, err = bucket.Get(ctx, c.key+".partitions"); err == nil && string(has.Value()) != want {
			return nil, nil, refused{fmt.Errorf("the queue has %s partitions, not %s; see the key %s of the bucket %s", has.Value(), want, has.Key(), bucket.Bucket())}
		}
	}
	return stream, bucket, retryable(err)
}

// stream finds the stream that has all partitions of a subject.
func (q *Queue) stream(ctx context.Context, base string) (jetstream.Stream, error) {
	var name string
	n := q.options.Partitions
	for _, p := range []int{0, n - 1} {
		subject := subjectOf(base, p, n)
		found, err := q.js.StreamNameBySubject(ctx, subject)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return nil, refused{fmt.Errorf("no stream has the subject %s: %w", subject, err)}
		case err != nil:
			return nil, retryable(err)
		case name != "" && found != name:
			return nil, refused{fmt.Errorf("the partitions are in the streams %s and %s", name, found)}
		}
		name = found
	}
	stream, err := q.js.Stream(ctx, name)
	return stream, retryable(err)
}

// retryable marks a temporary error: the request can be repeated.
func retryable(err error) error {
	if err == nil {
		return nil
	}
	return problem("find stream and bucket", "", interlock.Retryable, err)
}

// Resume ends the parking of a key, if a consumer of this Queue has parked it; otherwise it returns
// a Definite error. Only the partition's consumer keeps its parked keys: the next consumer retries
// the message.
func (q *Queue) Resume(name, key string) error {
	if q.consumers.Resume(name, key) {
		return nil
	}
	return problem("resume key", key, interlock.Definite, errors.New("the key is not parked in this process"))
}
