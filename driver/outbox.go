package driver

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
)

// A Message is an event on its way to somebody else. The same ID is sent again
// whenever it is not known whether it arrived, so that receivers can tell.
type Message struct {
	ID      string            // unique for all time; 1 to 255 bytes
	Topic   string            // where it goes; 1 to 255 bytes
	Key     string            // messages of one topic and key are in order; empty: this one is in no order
	Headers map[string]string // beside the payload; names are those of the field
	Payload []byte
}

// A Sink hands messages over to a system that keeps them. It is safe for
// concurrent use.
type Sink interface {
	// Publish delivers messages and returns what became of each, in their order:
	// nil once the system has it durably. It sends those of one topic and key in
	// the order given; what follows a failure of its topic and key is not sent, and
	// has [ErrNotSent]. A Definite error, or a Bug, says that this message will
	// never be taken (it is too large, or refused for what it is); any other says
	// that it may be sent again, and Uncertain that it may have arrived.
	//
	// Publish returns when ctx ends, with that for everything unanswered, and
	// retries nothing.
	Publish(ctx context.Context, messages []Message) []error
}

// ErrNotSent is the error of a message that was held back because one before it,
// of the same topic and key, was not delivered. It is Retryable.
var ErrNotSent error = &interlock.Error{Op: "publish", Kind: interlock.Retryable,
	Err: errors.New("held back: a message before it, of the same topic and key, was not delivered")}
