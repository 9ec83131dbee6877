package outbox

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// What a message may have at most, in bytes.
const (
	MaxID      = 255
	MaxTopic   = 255
	MaxKey     = driver.MaxName
	MaxHeaders = 16 << 10 // names and values, as JSON
	MaxPayload = 1 << 20
)

// A MessageError tells what is wrong with a message. Nothing was sent to the
// database. It is Definite.
type MessageError struct {
	Index int    // among those of the call
	ID    string // if it has one
	Why   string
}

// Error says which message, and what is wrong.
func (e *MessageError) Error() string {
	return fmt.Sprintf("add message %d %q to outbox: %s", e.Index, e.ID, e.Why)
}

// ErrorKind is [interlock.Definite].
func (e *MessageError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A DuplicateError tells that an id is that of another message which is not
// delivered yet, or of one of the same call. It is Definite; the transaction has
// to be rolled back.
type DuplicateError struct{ Table string }

// Error names the outbox.
func (e *DuplicateError) Error() string {
	return "a message with the same id waits already in outbox " + e.Table
}

// ErrorKind is [interlock.Definite].
func (e *DuplicateError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// prepared is a message as it is stored.
type prepared struct {
	Message
	headers string // JSON, empty if there are none
	lane    int64
}

// size is about what it takes in a statement.
func (p prepared) size() int {
	return len(p.ID) + len(p.Topic) + len(p.Key) + len(p.headers) + len(p.Payload)
}

// prepare checks a message and gives it an id.
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
	if m.Topic == "" {
		return refuse("it has no topic")
	}
	for _, f := range []struct {
		name, value string
		max         int
	}{{"id", m.ID, MaxID}, {"topic", m.Topic, MaxTopic}, {"key", m.Key, MaxKey}} {
		if len(f.value) > f.max {
			return refuse("its %s has %d bytes, at most %d are allowed", f.name, len(f.value), f.max)
		}
		if !text(f.value) {
			return refuse("its %s is not UTF-8 without NUL", f.name)
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

// encoded is headers as they are stored, or why they cannot be.
func encoded(headers map[string]string) (stored, why string) {
	if len(headers) == 0 {
		return "", ""
	}
	for name, value := range headers {
		if name == "" || !text(name) || !text(value) {
			return "", fmt.Sprintf("header %q is not UTF-8 without NUL, or has no name", name)
		}
	}
	b, err := json.Marshal(headers)
	if err != nil {
		return "", fmt.Sprintf("its headers: %v", err)
	}
	if len(b) > MaxHeaders {
		return "", fmt.Sprintf("its headers have %d bytes as JSON, %d are the most", len(b), MaxHeaders)
	}
	return string(b), ""
}

// decoded is the headers as they were added.
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

func text(s string) bool { return driver.CheckText("a text", s, 0, len(s)) == nil }

// laneOf numbers what is delivered one after the other: a topic and key, or a
// message without a key by itself. The lane of a key is also what is locked while
// messages are added to it, so it is the same for every table. Two keys that share
// a number, one pair in 2^64, wait for each other.
func laneOf(m Message) int64 {
	name := "interlock outbox\x00" + m.Topic + "\x00" + m.Key
	if m.Key == "" {
		name = "interlock outbox\x00\x00" + m.ID
	}
	sum := sha256.Sum256([]byte(name))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// spread is a lane without its sign, for dividing by the number of slices.
func spread(lane int64) int64 { return int64(uint64(lane) >> 1) }
