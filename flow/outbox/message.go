package outbox

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Limits of a message, in bytes.
const (
	MaxID      = 255
	MaxTopic   = 255
	MaxKey     = driver.MaxName
	MaxHeaders = 16 << 10 // names and values, as JSON
	MaxPayload = 1 << 20
)

// A MessageError means that a message is invalid.
type MessageError = driver.MessageError

// A DuplicateError means that a message that is not delivered yet, or another one of the same call,
// has the same id. It is Definite; the transaction must be rolled back.
type DuplicateError struct{ Table string }

// Error names the outbox.
func (e *DuplicateError) Error() string {
	return "outbox " + e.Table + " has an undelivered message with the same id"
}

// ErrorKind returns [interlock.Definite].
func (e *DuplicateError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// prepared is a message as it is stored.
type prepared struct {
	Message
	headers string // JSON, empty if there are none
	lane    int64
}

// size returns the approximate size in a statement.
func (p prepared) size() int {
	return len(p.ID) + len(p.Topic) + len(p.Key) + len(p.headers) + len(p.Payload)
}

// prepare validates a message and assigns an id.
func prepare(i int, m Message) (prepared, error) {
	if m.ID == "" {
		m.ID = rand.Text()
	}
	p := prepared{Message: m, lane: laneOf(m)}
	refuse := func(format string, args ...any) (prepared, error) {
		return p, &MessageError{Index: i, ID: m.ID, Why: fmt.Sprintf(format, args...)}
	}
	if err := driver.CheckMessageID(m.ID); err != nil {
		return refuse("%v", err)
	}
	for _, f := range []struct {
		what, text  string
		least, most int
	}{{"an id", m.ID, 1, MaxID}, {"a topic", m.Topic, 1, MaxTopic}, {"a key", m.Key, 0, MaxKey}} {
		if err := driver.CheckText(f.what, f.text, f.least, f.most); err != nil {
			return refuse("%v", err)
		}
	}
	if len(m.Payload) > MaxPayload {
		return refuse("its payload has %d bytes, at most %d are allowed", len(m.Payload), MaxPayload)
	}
	var why string
	if p.headers, why = encoded(m.Headers); why != "" {
		return refuse("%s", why)
	}
	return p, nil
}

// encoded returns headers as they are stored, or why they are invalid.
func encoded(headers map[string]string) (stored, why string) {
	if len(headers) == 0 {
		return "", ""
	}
	for name, value := range headers {
		if driver.CheckText("a header", name, 1, len(name)) != nil || driver.CheckText("a header", value, 0, len(value)) != nil {
			return "", fmt.Sprintf("header %q is not UTF-8 without NUL, or has no name", name)
		}
	}
	b, err := json.Marshal(headers)
	if err != nil {
		return "", fmt.Sprintf("its headers: %v", err)
	}
	if len(b) > MaxHeaders {
		return "", fmt.Sprintf("its headers have %d bytes as JSON, at most %d are allowed", len(b), MaxHeaders)
	}
	return string(b), ""
}

// decoded parses stored headers.
func decoded(headers string) (map[string]string, error) {
	if headers == "" {
		return nil, nil
	}
	var m map[string]string
	if err := json.Unmarshal([]byte(headers), &m); err != nil {
		return nil, &interlock.Error{Op: "read outbox", Kind: interlock.Definite, Err: fmt.Errorf("headers are damaged: %w", err)}
	}
	return m, nil
}

// laneOf returns the number of a topic and key, or of a message without a key. Messages of a lane are
// delivered one after the other. Add locks the number, so it is the same for every table. Two keys
// share a number with a probability of 2^-64; then they wait for each other.
func laneOf(m Message) int64 {
	name := "interlock outbox\x00" + m.Topic + "\x00" + m.Key
	if m.Key == "" {
		name = "interlock outbox\x00\x00" + m.ID
	}
	sum := sha256.Sum256([]byte(name))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// spread returns a lane without its sign, to divide it by the number of slices.
func spread(lane int64) int64 { return int64(uint64(lane) >> 1) }

// Message is a message.
type Message = driver.Message

// Sink is where a relay delivers messages: a [Func], a webhook.Sink, or one of your own.
type Sink = driver.Sink

// Func returns a sink that calls fn for each message: in order for one topic and key, and for up to
// 16 of them at the same time. fn must return when ctx ends. The kind of its error decides what
// follows (see [interlock.Kind]). After an error of unknown kind, an error after the end of ctx, or a panic,
// the message is sent again.
func Func(fn func(ctx context.Context, m Message) error) Sink { return funcSink(fn) }

type funcSink func(ctx context.Context, m Message) error

const atOnce = 16 // concurrent calls of a Func

// Publish calls the function; see [driver.Sink].
func (f funcSink) Publish(ctx context.Context, messages []Message) []error {
	return driver.SendLanes(messages, atOnce, func(m Message) error {
		err := f(ctx, m)
		if err != nil && ctx.Err() != nil { // the end of ctx may be its cause
			err = &interlock.Error{Op: "publish", Name: m.ID, Kind: interlock.Uncertain, Err: err}
		}
		return err
	})
}
