// Package nats delivers the messages of an outbox to NATS JetStream. It does not deliver a message
// once: after a lost answer the outbox sends it again, with the same id. The stream drops the
// second one inside its duplicate window, two minutes by default; after that consumers drop it
// (guard/once).
//
//	sink, err := nats.OpenSink("nats://127.0.0.1:4222", nil)
//	defer sink.Close()
//	relay, err := outbox.Start(ctx, "postgres://127.0.0.1/shop", outbox.Table{}, sink, nil)
//
// DESIGN.md explains how the order of a key survives failures.
package nats

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock"
)

// Headers of messages, beside those of their own. The id is in [jetstream.MsgIDHeader],
// "Nats-Msg-Id", by which a stream finds duplicates. Both are percent-encoded, since a header has
// no line breaks: url.PathUnescape decodes them, and leaves letters, digits, "-", "_" and "." as
// they are.
const (
	HeaderID  = jetstream.MsgIDHeader
	HeaderKey = "Interlock-Key"
)

// address is what a URL names: nats://host:port[,host:port…][/prefix].
type address struct {
	servers string // as the client reads them
	prefix  string // of subjects, with its dot; empty if there is none
}

func parse(text string) (address, error) {
	rest, ok := strings.CutPrefix(text, "nats://")
	hosts, prefix, _ := strings.Cut(rest, "/")
	switch {
	case !ok:
		return address{}, errors.New(`the URL does not begin with "nats://"`)
	case strings.Contains(hosts, "@"):
		return address{}, errors.New("the URL has a user; set credentials and TLS by SinkOptions.Client")
	case strings.ContainsAny(rest, "?#"):
		return address{}, errors.New("the URL has options; there are none")
	case prefix != "" && !legal(prefix):
		return address{}, fmt.Errorf("%.300q cannot begin a subject", prefix)
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if name, port, err := net.SplitHostPort(host); err != nil || name == "" || port == "" {
			return address{}, fmt.Errorf("%.300q is not host:port", host)
		}
	}
	if prefix != "" {
		prefix += "."
	}
	return address{hosts, prefix}, nil
}

// legal reports whether messages can be published to a subject: it has no wildcard, no empty
// token, no white space, is UTF-8, and is not one of the server's own.
func legal(subject string) bool {
	for token := range strings.SplitSeq(subject, ".") {
		if token == "" || token == "*" || token == ">" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return false
		}
	}
	return utf8.ValidString(subject) && !strings.HasPrefix(subject, "$") && !strings.HasPrefix(subject, "_INBOX.")
}

func problem(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Driver: "nats", Name: name, Kind: kind, Err: err}
}

// largeHeader is a code of JetStream for which the client has no name.
const largeHeader = 10097

// classify returns what may be concluded from an error of the client about a message. Only what a
// server said about the message itself is final, and only what was not sent is Retryable. Any
// other message may be stored, also one that was refused: a leader that fails may have passed it on.
func classify(err error) interlock.ErrorKind {
	var answer *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject):
		return interlock.Definite
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrHeadersNotSupported), // no connection, or none yet
		errors.Is(err, jetstream.ErrNoStreamResponse): // no stream has the subject: an operator can add it
		return interlock.Retryable
	case errors.As(err, &answer) && (answer.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum || answer.ErrorCode == largeHeader):
		return interlock.Definite
	}
	return interlock.Uncertain
}
