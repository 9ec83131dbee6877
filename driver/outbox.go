package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
	// Publish delivers messages and returns the outcome of each, in their order:
	// nil once the system has it durably. It sends those of one topic and key in
	// the order given; what follows a failure of its topic and key is not sent, and
	// has [ErrNotSent]. An error that says of
	// itself that it is Definite, or a Bug, says that this message will never be
	// taken (it is too large, or refused for what it is); any other says
	// that it may be sent again, and Uncertain that it may have arrived. An error
	// with a method RetryAfter() time.Duration asks for a pause before that.
	//
	// Publish returns when ctx ends, with that for everything unanswered, and
	// retries nothing.
	Publish(ctx context.Context, messages []Message) []error
}

// CheckMessageID refuses ids that a webhook could not be signed with: the signature is
// over "id.timestamp.body", so that a dot would shift its parts. It holds for all
// messages of an outbox, since what a sink refuses would block its key.
func CheckMessageID(id string) error {
	if id == "" || strings.ContainsAny(id, ".\r\n") || strings.TrimSpace(id) != id {
		return fmt.Errorf("the id %q cannot be signed: it is empty, or has a dot, line breaks or spaces around it", id)
	}
	return nil
}

// ErrNotSent is the error of a message that was held back because one before it,
// of the same topic and key, was not delivered. It is Retryable.
var ErrNotSent error = &interlock.Error{Op: "publish", Kind: interlock.Retryable,
	Err: errors.New("held back: a message before it, of the same topic and key, was not delivered")}

// Lanes groups messages that have to go one after the other: each lane is the
// indices of one topic and key, in order; a message without a key is alone. It is
// for sinks that send one message at a time.
func Lanes(messages []Message) (lanes [][]int) {
	type name struct{ topic, key string }
	found := map[name]int{}
	for i, m := range messages {
		n := name{m.Topic, m.Key}
		if at, ok := found[n]; ok && m.Key != "" {
			lanes[at] = append(lanes[at], i)
			continue
		}
		found[n] = len(lanes)
		lanes = append(lanes, []int{i})
	}
	return lanes
}

// A Notifier tells processes that something may have happened: that messages were committed, or
// that a transaction of a journal goes on. It is a hint: a notification may be lost, so listeners
// also look by themselves now and then.
type Notifier interface {
	// Notify does not block. Names say what has happened: at most 255 bytes of UTF-8 without NUL
	// each. None stand for anything. Notifications that follow each other closely may become one, and
	// their names any name.
	Notify(names ...string)
	// Listen calls each with every name that is notified, and with the empty one where it may be
	// any, from one goroutine at a time, until stop is called. It must return at once, and
	// neither notify nor listen. It hears the notifications of this process and, if the notifier is one of
	// a server, those of others.
	Listen(each func(name string)) (stop func())
}
