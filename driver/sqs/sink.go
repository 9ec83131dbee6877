package sqs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// DefaultMaxBytes is the largest message, and request, that SQS accepts.
const DefaultMaxBytes = 1 << 20

// batch is how many messages SQS accepts in one request.
const batch = 10

// SinkOptions of a Sink; nil and the zero value work.
type SinkOptions struct {
	// MaxBytes bounds a message with its attributes, and a request; 0 means [DefaultMaxBytes].
	// SQS rejects requests above the MaximumMessageSize of a queue, Definite.
	MaxBytes int
}

// Sink sends messages to queues. It implements driver.Sink. A message is delivered when SQS
// confirms it. In a FIFO queue the group of a message is its key, so that consumers receive the
// messages of a key in order. Its deduplication id is its topic and id.
type Sink struct {
	client *sqs.Client
	queues string // the name of queues, with "*" for the topic
	limit  int

	urls sync.Map // of queues, by name
}

var _ driver.Sink = (*Sink)(nil)

// OpenSink returns a Sink; it sends nothing yet. queues is the name of a message's queue, where "*"
// stands for the topic: "*" is the topic alone, and "shop-*.fifo" adds a prefix. "orders.fifo" sends all
// messages to one queue, with their topics in [AttributeTopic]. A name that ends in ".fifo" is that of a
// FIFO queue. OpenSink creates no queues. settings are those of the AWS SDK: region, credentials,
// endpoint.
func OpenSink(settings aws.Config, queues string, o *SinkOptions) (*Sink, error) {
	const op = "open sink"
	s := &Sink{queues: queues, limit: DefaultMaxBytes}
	if o != nil && o.MaxBytes != 0 {
		s.limit = o.MaxBytes
	}
	switch {
	case strings.Count(queues, "*") > 1 || !legalQueue(strings.Replace(queues, "*", "t", 1)):
		return nil, problem(op, queues, interlock.Bug, fmt.Errorf("%.300q is no name of a queue: use up to 80 letters, digits, - and _, one * for the topic, and .fifo at the end", queues))
	case s.limit < 1<<10 || s.limit > DefaultMaxBytes:
		return nil, problem(op, queues, interlock.Bug, fmt.Errorf("a MaxBytes of %d; 1 KiB to 1 MiB are allowed", s.limit))
	case settings.Region == "":
		return nil, problem(op, queues, interlock.Bug, errors.New("no region is set; set AWS_REGION or aws.Config.Region"))
	}
	s.client = sqs.NewFromConfig(settings, func(o *sqs.Options) { o.Retryer = aws.NopRetryer{} }) // the relay retries
	return s, nil
}

// Publish sends messages; see driver.Sink. SQS may accept a message of a request and reject an
// earlier one. So a request has at most one message of each topic and key, and the next one
// follows after its answer. Ten keys share a request.
func (s *Sink) Publish(ctx context.Context, messages []driver.Message) []error {
	answers := make([]error, len(messages))
	var requests sync.WaitGroup
	for queue, lanes := range s.byQueue(messages) {
		for len(lanes) > 0 {
			some := lanes[:min(batch, len(lanes))]
			lanes = lanes[len(some):]
			requests.Go(func() { s.sendLanes(ctx, queue, messages, some, answers) })
		}
	}
	requests.Wait()
	return answers
}

// byQueue groups the lanes of messages by the names of their queues.
func (s *Sink) byQueue(messages []driver.Message) map[string][][]int {
	queues := map[string][][]int{}
	for _, lane := range driver.Lanes(messages) {
		name := strings.Replace(s.queues, "*", messages[lane[0]].Topic, 1)
		queues[name] = append(queues[name], lane)
	}
	return queues
}

// sendLanes sends at most ten lanes: the first message of each, then the second, and so on.
func (s *Sink) sendLanes(ctx context.Context, queue string, messages []driver.Message, lanes [][]int, answers []error) {
	for len(lanes) > 0 {
		heads := make([]int, len(lanes))
		for i, lane := range lanes {
			heads[i] = lane[0]
		}
		s.send(ctx, queue, messages, heads, answers)
		var left [][]int
		for _, lane := range lanes {
			if answers[lane[0]] != nil {
				for _, behind := range lane[1:] {
					answers[behind] = driver.ErrNotSent
				}
			} else if len(lane) > 1 {
				left = append(left, lane[1:])
			}
		}
		lanes = left
	}
}

// send sends messages in as few requests as their sizes allow, one at a time.
func (s *Sink) send(ctx context.Context, queue string, messages []driver.Message, chosen []int, answers []error) {
	var entries []types.SendMessageBatchRequestEntry
	size := 0
	for _, i := range chosen {
		entry, n, err := s.entry(queue, messages[i], i)
		if err != nil {
			answers[i] = err
			continue
		}
		if size+n > s.limit {
			s.request(ctx, queue, messages, entries, answers)
			entries, size = nil, 0
		}
		entries, size = append(entries, entry), size+n
	}
	if len(entries) > 0 {
		s.request(ctx, queue, messages, entries, answers)
	}
}

// entry encodes a message, and returns its size. The error explains why it cannot be sent.
func (s *Sink) entry(queue string, m driver.Message, i int) (entry types.SendMessageBatchRequestEntry, size int, err error) {
	switch {
	case m.ID == "" || m.Topic == "":
		return entry, 0, problem("publish", m.ID, interlock.Bug, interlock.ErrName)
	case !legalQueue(queue):
		return entry, 0, problem("publish", m.ID, interlock.Definite, fmt.Errorf("%.300q cannot be the name of a queue", queue))
	}
	body, attributes := encode(m, !strings.Contains(s.queues, "*"))
	size = len(body)
	for name, a := range attributes {
		size += len(name) + len(*a.DataType) + len(*a.StringValue)
	}
	if size > s.limit {
		return entry, 0, problem("publish", m.ID, interlock.Definite, fmt.Errorf("the message has %d bytes with its attributes; MaxBytes is %d", size, s.limit))
	}
	entry = types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), MessageBody: &body, MessageAttributes: attributes}
	if strings.HasSuffix(queue, fifo) {
		entry.MessageDeduplicationId = aws.String(token128(m.Topic, m.ID))
		if m.Key == "" {
			entry.MessageGroupId = aws.String("?" + hash(m.ID)) // its own group: it waits for no other
		} else {
			entry.MessageGroupId = aws.String(token128(m.Key))
		}
	}
	return entry, size, nil
}

// request sends entries once. If SQS rejects the request as a whole, it has stored nothing, and
// perhaps only one message is the reason: each is then sent alone.
func (s *Sink) request(ctx context.Context, queue string, messages []driver.Message, entries []types.SendMessageBatchRequestEntry, answers []error) {
	place := map[string]int{} // in messages, by the id of an entry
	for _, e := range entries {
		place[*e.Id], _ = strconv.Atoi(*e.Id) // a number, written by entry
	}
	all := func(kind interlock.ErrorKind, err error) {
		for _, i := range place {
			answers[i] = problem("publish", messages[i].ID, kind, err)
		}
	}
	if ctx.Err() != nil {
		all(interlock.Retryable, context.Cause(ctx))
		return
	}
	url, err := s.url(ctx, queue)
	if err != nil {
		all(interlock.Retryable, fmt.Errorf("find queue %s: %w", queue, err))
		return
	}
	out, err := s.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: url, Entries: entries})
	if kind := classify(err); err != nil && kind == interlock.Definite && len(entries) > 1 {
		for i := range entries {
			s.request(ctx, queue, messages, entries[i:i+1], answers)
		}
		return
	} else if err != nil {
		all(kind, err)
		return
	}
	all(interlock.Uncertain, errors.New("the answer does not mention the message"))
	for _, taken := range out.Successful {
		if i, ok := place[aws.ToString(taken.Id)]; ok {
			answers[i] = nil
		}
	}
	for _, f := range out.Failed {
		if i, ok := place[aws.ToString(f.Id)]; ok {
			answers[i] = problem("publish", messages[i].ID, classifyCode(aws.ToString(f.Code)), fmt.Errorf("%s: %s", aws.ToString(f.Code), aws.ToString(f.Message)))
		}
	}
}

// url returns the URL of a queue. It sends one request for each queue.
func (s *Sink) url(ctx context.Context, queue string) (*string, error) {
	if known, ok := s.urls.Load(queue); ok {
		return known.(*string), nil
	}
	out, err := s.client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &queue})
	if err != nil {
		return nil, err
	}
	s.urls.Store(queue, out.QueueUrl)
	return out.QueueUrl, nil
}
