// Package nats delivers the messages of an outbox to NATS JetStream, and consumes streams. Neither is
// exactly once. After a lost answer the outbox sends a message again with the same id; the stream
// drops it inside its duplicate window, two minutes by default. After a crash a message is handled
// again. Handlers drop repetitions by the id (guard/once), or pass the token of their claim to a
// guard.
//
//	sink, err := nats.OpenSink("nats://127.0.0.1:4222", nil)
//	defer sink.Close()
//	relay, err := outbox.Start(ctx, "postgres://127.0.0.1/shop", outbox.Table{}, sink, nil)
//
// A consumer:
//
//	q, err := nats.OpenQueue("nats://127.0.0.1:4222", nil)
//	defer q.Close()
//	c, err := queue.New(ctx, q, "orders", handle, nil)
//	defer c.Close(ctx)
//
// DESIGN.md explains how the order of a key survives failures.
package nats

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// Headers that the sink adds to those of a message. The id is in [jetstream.MsgIDHeader],
// "Nats-Msg-Id", by which a stream finds duplicates. Both are percent-encoded, since a header
// cannot have line breaks; url.PathUnescape decodes them. Letters, digits, "-", "_" and "." are
// not encoded.
const (
	HeaderID  = jetstream.MsgIDHeader
	HeaderKey = "Interlock-Key"
)

// parse returns the servers of nats://host:port[,host:port…][/prefix], in the client's syntax, and the
// prefix of subjects, with its dot; it may be empty.
func parse(url string) (servers, prefix string, err error) {
	hosts, prefix, err := lanes.ParseURL("nats", url, legal)
	if prefix != "" {
		prefix += "."
	}
	return strings.Join(hosts, ","), prefix, err
}

// legal reports whether messages can be published to a subject. It must be UTF-8, without
// wildcards, empty tokens or white space, and not one of the server's own.
func legal(subject string) bool {
	for token := range strings.SplitSeq(subject, ".") {
		if token == "" || token == "*" || token == ">" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return false
		}
	}
	return utf8.ValidString(subject) && !strings.HasPrefix(subject, "$") && !strings.HasPrefix(subject, "_INBOX.")
}

// connect returns a client that reconnects without limit and buffers nothing while disconnected.
// An unreachable server is no error: connect waits for at most two seconds. The client leaves a
// server that does not answer pings after 15 seconds.
func connect(servers string, more []nats.Option) (*nats.Conn, jetstream.JetStream, error) {
	options := slices.Concat([]nats.Option{nats.ReconnectWait(200 * time.Millisecond), nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2)}, more,
		[]nats.Option{nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), // otherwise two refusals close the client
			nats.ReconnectBufSize(-1), // a message does not outlive its Publish
		})
	client, err := nats.Connect(servers, options...)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(client)
	if err != nil {
		client.Close()
	}
	return client, js, err
}

// explain adds the reason to an error if no server is connected.
func explain(client *nats.Conn, err error) error {
	switch last := client.LastError(); {
	case client.IsConnected():
		return err
	case last != nil:
		return fmt.Errorf("no server is connected (%w): %w", last, err)
	}
	return fmt.Errorf("no server is connected: %w", err)
}

// partition returns the partition of a key among n: the same as the function partition(n, …) of a
// server's subject transform.
func partition(key string, n int) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % uint32(n))
}

// subjectOf returns the subject of a partition among n; if n is 1, the plain subject.
func subjectOf(base string, partition, n int) string {
	if n == 1 {
		return base
	}
	return base + "." + strconv.Itoa(partition)
}

// maxPartitions bounds the Partitions of options.
const maxPartitions = 1024

func problem(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Driver: "nats", Name: name, Kind: kind, Err: err}
}

// largeHeader is an error code of JetStream for which the client has no name.
const largeHeader = 10097

// classify returns the kind of an error of Publish. It is Definite only if a server refused the
// message itself, and Retryable only if the message was not stored. Otherwise the message may be
// stored, even if it was refused: a failing leader may have replicated it.
func classify(err error) interlock.ErrorKind {
	var answer *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject):
		return interlock.Definite
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrHeadersNotSupported), // no connection, or none yet
		errors.Is(err, jetstream.ErrNoStreamResponse): // no stream has the subject, until an operator adds it, or the stream has no leader
		return interlock.Retryable
	case errors.As(err, &answer) && (answer.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum || answer.ErrorCode == largeHeader):
		return interlock.Definite
	}
	return interlock.Uncertain
}
