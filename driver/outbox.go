package driver

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/interlock-dev/interlock"
)

// A Message is an event on its way to another system. If it is unknown whether a message
// arrived, it is sent again with the same ID. Receivers use the ID to detect duplicates.
type Message struct {
	ID      string            // never used again; 1 to 255 bytes
	Topic   string            // the destination; 1 to 255 bytes
	Key     string            // messages of one topic and key are ordered; empty means unordered
	Headers map[string]string // sent with the payload
	Payload []byte
}

// A Sink delivers messages to a system that stores them. It is safe for concurrent use.
type Sink interface {
	// Publish delivers messages and returns their outcomes in the same order. An outcome is nil
	// once the system has stored the message durably. Messages of one topic and key are sent in
	// order. After a failure, the later messages of that topic and key are not sent, and their
	// outcome is [ErrNotSent].
	//
	// Kinds of errors:
	//   - Definite and Bug, set explicitly: the system will never accept this message, for
	//     example because it is too large.
	//   - Uncertain: the message may have arrived. It may be sent again.
	//   - any other error: the message may be sent again.
	//
	// If the error has a method RetryAfter() time.Duration, wait that long before sending
	// again.
	//
	// If ctx ends, Publish returns, with the cause of ctx for every unanswered message. It
	// never retries.
	Publish(ctx context.Context, messages []Message) []error
}

// CheckMessageID returns an error for an id that cannot be part of a webhook signature. The
// signature covers "id.timestamp.body", so a dot in the id would move its boundaries. The rule
// applies to all messages of an outbox, because a message that a sink refuses would block its
// key.
func CheckMessageID(id string) error {
	if id == "" || strings.ContainsAny(id, ".\r\n") || strings.TrimSpace(id) != id {
		return fmt.Errorf("the id %q cannot be signed: it is empty, or has a dot, line breaks or spaces around it", id)
	}
	return nil
}

// ErrNotSent is the error of a message that was held back, because an earlier message of the
// same topic and key was not delivered. It is Retryable.
var ErrNotSent error = &interlock.Error{Op: "publish", Kind: interlock.Retryable,
	Err: errors.New("held back: a message before it, of the same topic and key, was not delivered")}

// Lanes groups messages that must be sent in sequence. Each lane has the indices of one topic
// and key, in order. A message without a key is a lane of its own. Lanes is for sinks that send
// one message at a time.
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

// SendLanes calls send for each message and returns its errors, as [Sink].Publish does. Up to n
// lanes are sent at once, at least one. A panic of send, or the end of its goroutine, is an Uncertain error of its message.
func SendLanes(messages []Message, n int, send func(Message) error) []error {
	answers := slices.Repeat([]error{ErrNotSent}, len(messages))
	turns := make(chan struct{}, max(n, 1))
	var sending sync.WaitGroup
	for _, lane := range Lanes(messages) {
		turns <- struct{}{}
		sending.Go(func() {
			defer func() { <-turns }()
			for _, i := range lane {
				answers[i] = errNoReturn // if send ends the goroutine
				if answers[i] = sendOne(messages[i], send); answers[i] != nil {
					return
				}
			}
		})
	}
	sending.Wait()
	return answers
}

var errNoReturn = &interlock.Error{Op: "publish", Kind: interlock.Uncertain, Err: errors.New("it ended its goroutine")}

// sendOne returns the error of send, or its panic.
func sendOne(m Message, send func(Message) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &interlock.Error{Op: "publish", Name: m.ID, Kind: interlock.Uncertain, Err: fmt.Errorf("panic: %v\n%s", v, debug.Stack())}
		}
	}()
	return send(m)
}

// A Notifier signals processes that something may have happened: for example that messages were
// committed or that a transaction can continue. Notifications are hints and may be lost, so
// listeners must also poll.
type Notifier interface {
	// Notify calls listeners and does not block. Names identify the events: at most 255 bytes
	// of UTF-8 without NUL each. No names mean any event. Notifications in quick succession may
	// be merged, and their names replaced by "any".
	Notify(names ...string)
	// Listen calls each with every name that is notified, until stop is called. The empty name
	// means any name. The calls come from one goroutine at a time. The function must return at
	// once and must not call Notify or Listen. It receives the notifications of this process
	// and, if the notifier belongs to a server, of other processes.
	Listen(each func(name string)) (stop func())
}
