// Package kafka delivers the messages of an outbox to Kafka, and handles those of topics. It
// does neither once: after a lost answer the outbox sends a message again, with the same id, and
// after a crash a message is handled again. Handlers drop repetitions by the id (guard/once), or
// pass the token of their claim to a guard.
//
//	sink, err := kafka.OpenSink("kafka://127.0.0.1:9092", nil)
//	defer sink.Close()
//	relay, err := outbox.Start(ctx, "postgres://127.0.0.1/shop", outbox.Table{}, sink, nil)
//
// A consumer:
//
//	q, err := kafka.OpenQueue("kafka://127.0.0.1:9092", nil)
//	defer q.Close()
//	c, err := queue.New(ctx, q, "orders", handle, nil)
//	defer c.Close(ctx)
//
// DESIGN.md explains how the order of a key survives failures.
package kafka

import (
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// Headers of records, beside those of the message. Its key is the key of the record.
const (
	HeaderID    = "interlock-id"    // the id of the message
	HeaderTopic = "interlock-topic" // its topic, where all messages go to one topic of Kafka
)

// legal reports whether Kafka allows a name for a topic.
func legal(topic string) bool {
	return lanes.IsName(topic) && topic != "." && topic != ".." && len(topic) <= 249
}

func problem(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Driver: "kafka", Name: name, Kind: kind, Err: err}
}

// loginErrors are what a broker answers to credentials.
var loginErrors = []error{kerr.SaslAuthenticationFailed, kerr.IllegalSaslState, kerr.UnsupportedSaslMechanism}

func isAny(err error, of ...error) bool {
	return slices.ContainsFunc(of, func(e error) bool { return errors.Is(err, e) })
}

// classify returns what may be concluded from an error of the client about a record. Only what a
// broker said about the record itself is final. Of a record without an answer nothing is known, also if
// the client could not dial: it tries several times, and returns only the error of its last attempt.
func classify(err error) interlock.ErrorKind {
	switch {
	case isAny(err, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.InvalidTopicException):
		return interlock.Definite
	case isAny(err, kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.UnknownServerError):
		return interlock.Uncertain
	case errors.As(err, new(*kerr.Error)):
		return interlock.Retryable
	}
	return interlock.Uncertain
}
