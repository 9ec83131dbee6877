package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// SinkOptions of a Sink; nil and the zero value work.
type SinkOptions struct {
	// Client is added to the options of the client, for credentials, TLS and tuning. The client
	// always reconnects without limit and buffers nothing while disconnected.
	Client []nats.Option
	// Partitions is the number of partitions of each topic, for [Queue]; at most 1024. 0 and 1
	// mean that the subject of a message is its topic. Otherwise it is the topic, a dot, and the
	// number of the partition: that of the key, or of the id of a message without a key.
	Partitions int
}

// Sink publishes messages to the streams that have their subjects. It implements driver.Sink. A
// message is delivered when a majority of its stream's replicas has it. Servers sync to disk at
// their sync_interval, two minutes by default: with one replica, a crash of the machine loses
// messages since the last sync.
type Sink struct {
	client *nats.Conn
	stream jetstream.JetStream
	prefix string

	partitions int
}

var _ driver.Sink = (*Sink)(nil)

// OpenSink connects a sink. In nats://host:port[,host:port…] the subject of a message is its topic;
// in nats://host:port/prefix it is "prefix." and its topic. Streams are not created. An unreachable
// server is no error: OpenSink waits for at most two seconds, and the client continues to connect.
func OpenSink(url string, o *SinkOptions) (*Sink, error) {
	const op = "open sink"
	servers, prefix, err := parse(url)
	if err != nil {
		return nil, problem(op, "", interlock.Bug, err)
	}
	s := &Sink{prefix: prefix, partitions: 1}
	var client []nats.Option
	if o != nil {
		client, s.partitions = o.Client, cmp.Or(o.Partitions, 1)
	}
	if s.partitions < 1 || s.partitions > maxPartitions {
		return nil, problem(op, "", interlock.Bug, fmt.Errorf("%d partitions; 1 to %d are allowed", s.partitions, maxPartitions))
	}
	if s.client, s.stream, err = connect(servers, client); err != nil {
		return nil, problem(op, "", interlock.Bug, err)
	}
	return s, nil
}

// Close disconnects. The outcome of messages that are being published is unknown.
func (s *Sink) Close() { s.client.Close() }

// Publish sends messages; see driver.Sink. It sends the messages of one topic and key one at a
// time, each after the answer to the previous one, and different keys concurrently.
func (s *Sink) Publish(ctx context.Context, messages []driver.Message) []error {
	return driver.SendLanes(messages, len(messages), func(m driver.Message) error { return s.publish(ctx, m) })
}

// publish sends one message, once.
func (s *Sink) publish(ctx context.Context, m driver.Message) error {
	if ctx.Err() != nil {
		return problem("publish", m.ID, interlock.Retryable, context.Cause(ctx))
	}
	msg, err := s.message(m)
	if err != nil {
		return err
	}
	if _, err := s.stream.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0)); err != nil {
		if errors.Is(err, jetstream.ErrNoStreamResponse) {
			err = fmt.Errorf("no stream answers for the subject %s, since there is none or it has no leader: %w", msg.Subject, err)
		}
		return problem("publish", m.ID, classify(err), explain(s.client, err))
	}
	return nil
}

// message encodes m. The error explains why m cannot be sent.
func (s *Sink) message(m driver.Message) (*nats.Msg, error) {
	subject := subjectOf(s.prefix+m.Topic, partition(cmp.Or(m.Key, m.ID), s.partitions), s.partitions)
	switch {
	case m.ID == "" || m.Topic == "":
		return nil, problem("publish", m.ID, interlock.Bug, interlock.ErrName)
	case !legal(subject):
		return nil, problem("publish", m.ID, interlock.Definite, fmt.Errorf("%.300q cannot be a subject", subject))
	}
	header := nats.Header{HeaderID: {url.PathEscape(m.ID)}}
	if m.Key != "" {
		header[HeaderKey] = []string{url.PathEscape(m.Key)}
	}
	for name, value := range m.Headers {
		if reserved(name) || strings.ContainsAny(name, ": \t\r\n\x00") || strings.ContainsAny(value, "\r\n\x00") || strings.TrimSpace(value) != value {
			return nil, problem("publish", m.ID, interlock.Definite, fmt.Errorf("the header %.300q cannot be sent: its name is reserved, or it has spaces around it or line breaks", name))
		}
		header[name] = []string{value}
	}
	return &nats.Msg{Subject: subject, Header: header, Data: m.Payload}, nil
}

// reserved reports whether a header is one of ours, or an instruction to the server.
func reserved(name string) bool {
	return name == "" || strings.EqualFold(name, HeaderKey) || strings.EqualFold(name, HeaderLetter) || len(name) >= 5 && strings.EqualFold(name[:5], "Nats-")
}
